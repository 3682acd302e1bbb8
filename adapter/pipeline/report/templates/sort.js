// Sorts a table by the column whose heading is pressed. Without this file the page is the same, and its tables stay as they are.
"use strict";

(() => {
  // Unknown values have no data-value, and are last in both directions.
  function compared(one, other, column, isNumber, sign) {
    const [a, b] = [one, other].map((row) => row.cells[column].dataset.value);
    if (!a || !b) return Number(!a) - Number(!b);
    return sign * (isNumber ? Number(a) - Number(b) : a.localeCompare(b));
  }

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const headings = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    headings.forEach((heading, column) => {
      if (!heading.dataset.sort) return;
      const isNumber = heading.dataset.sort === "number";
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const before = heading.getAttribute("aria-sort");
        const ascending = before ? before === "descending" : !isNumber;
        for (const one of headings) one.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        const sign = ascending ? 1 : -1;
        body.append(...[...body.rows].sort((one, other) => compared(one, other, column, isNumber, sign)));
      });
    });
  }
})();
