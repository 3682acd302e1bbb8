// Keeps a page as it is now: fragments come as server-sent events. Without this file the pages work, and are reloaded by hand.
"use strict";

(() => {
  const SILENT_MS = 12000; // the server says something at least every 5 s
  const FIRST_MS = 500;
  const MOST_MS = 10000;

  const root = document.querySelector("[data-live]");
  const connection = document.getElementById("connection");
  const liveState = document.getElementById("live-state");
  let source = null;
  let pause = FIRST_MS;
  let lastHeard = 0;
  let timer = 0;

  // Ages are told here, so that a fragment does not change every second.
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

  function ageOf(seconds) {
    if (seconds < 1) return "now";
    for (const [size, unit] of UNITS) {
      if (seconds >= 2 * size || size === 1) return `${Math.floor(seconds / size)} ${unit} ago`;
    }
    return "";
  }

  function tellAges() {
    const now = Date.now();
    for (const time of document.querySelectorAll("time[data-age]")) {
      const at = Date.parse(time.dateTime);
      if (Number.isNaN(at)) continue;
      if (!time.title) time.title = time.textContent;
      const text = ageOf((now - at) / 1000);
      if (time.textContent !== text) time.textContent = text;
    }
  }

  function replaced(id, html) {
    const old = document.getElementById(id);
    if (!old) return false;
    const holder = document.createElement("template");
    holder.innerHTML = html;
    const made = holder.content.firstElementChild;
    if (!made || made.id !== id) return false;
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const key = focused && (focused.id || focused.getAttribute("href"));
    const open = new Set([...old.querySelectorAll("details[open][id]")].map((one) => one.id));
    old.replaceWith(made);
    for (const details of made.querySelectorAll("details[id]")) {
      if (open.has(details.id)) details.open = true;
    }
    if (key) {
      const again = [...made.querySelectorAll("a, button, input, select, summary")].find(
        (one) => one.id === key || one.getAttribute("href") === key,
      );
      if (again) again.focus({ preventScroll: true });
    }
    if (made.tagName === "TR") made.classList.add("new");
    return true;
  }

  const notConnected = connection ? connection.textContent : "";

  function connected(is) {
    if (connection) {
      connection.textContent = notConnected;
      connection.hidden = is;
    }
    document.documentElement.dataset.connected = is ? "yes" : "no";
    if (liveState && is) liveState.textContent = "This page shows what is now.";
  }

  function again() {
    if (source) source.close();
    source = null;
    connected(false);
    clearTimeout(timer);
    timer = setTimeout(connect, pause);
    pause = Math.min(MOST_MS, pause * 2);
  }

  function connect() {
    lastHeard = Date.now();
    source = new EventSource(root.dataset.live);
    source.addEventListener("fragments", (event) => {
      lastHeard = Date.now();
      const known = JSON.parse(event.data);
      let missing = false;
      for (const [id, html] of known) missing = !replaced(id, html) || missing;
      tellAges();
      document.documentElement.dataset.updates = String(1 + Number(document.documentElement.dataset.updates || 0));
      if (missing) location.reload(); // the page is of another version
    });
    source.addEventListener("alive", () => {
      lastHeard = Date.now();
      pause = FIRST_MS;
      connected(true);
    });
    source.addEventListener("stale", (event) => { // the connection is there, the console knows nothing new
      lastHeard = Date.now();
      pause = FIRST_MS;
      connected(false);
      if (connection) connection.textContent = `What is shown here is old: ${JSON.parse(event.data)}`;
    });
    source.addEventListener("away", () => location.reload()); // logged out, or there is no such page any more
    source.onerror = again;
  }

  tellAges();
  setInterval(tellAges, 1000);
  if (!root || !window.EventSource) return;
  connect();
  setInterval(() => {
    if (source && Date.now() - lastHeard > SILENT_MS) again();
  }, 1000);
  window.addEventListener("pagehide", () => { if (source) source.close(); source = null; clearTimeout(timer); });
  window.addEventListener("pageshow", (event) => { if (event.persisted) again(); });
})();
