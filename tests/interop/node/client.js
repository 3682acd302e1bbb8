// The scenarios of ../clients.md with @grpc/grpc-js: one program, one channel, one report.
"use strict";

const path = require("node:path");
const { once } = require("node:events");
const { setTimeout: sleep } = require("node:timers/promises");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const DEADLINE_MS = 30_000;
const RETRY_MS = 20;
const METADATA = "m".repeat(4096);
const NO_COMPRESS = 2; // the library's flag for a message; it exports no name for it
const GZIP = 2;

const proto = path.join(__dirname, "../../../proto/offsets.proto");
const { OffsetStore } = grpc.loadPackageDefinition(loader.loadSync(proto, { keepCase: true, longs: Number })).offsets.v1;

const OPTIONS = {
  keepalive: { "grpc.keepalive_time_ms": 10_000, "grpc.keepalive_timeout_ms": 2_000, "grpc.keepalive_permit_without_calls": 1 },
  drain: { "grpc.initial_reconnect_backoff_ms": 50, "grpc.max_reconnect_backoff_ms": 200 },
  compressed: { "grpc.default_compression_algorithm": GZIP },
};

class Plain extends grpc.InterceptingCall {
  sendMessageWithContext(context, message) {
    super.sendMessageWithContext({ ...context, flags: NO_COMPRESS }, message);
  }
}

const commit = (group, ...shards) => ({ groups: [{ group, shards: shards.map(([shard, offset]) => ({ shard, offset })) }] });

const bulk = (group, count) => ({
  groups: [{ group, shards: Array.from({ length: count }, (_, at) => ({ shard: `s-${at}`, offset: 1, metadata: METADATA })) }],
});

const counted = (codes) => {
  const counts = {};
  for (const code of codes) counts[code] = (counts[code] ?? 0) + 1;
  return counts;
};

const range = (count) => Array.from({ length: count }, (_, at) => at + 1);

const within = (ms) => ({ deadline: Date.now() + ms });

/** The end of a call that is a stream: its code. Its errors are its status, told a second time. */
const ended = (call) => {
  call.on("error", () => {});
  return new Promise((resolve) => call.on("status", (status) => resolve(status.code)));
};

/** The messages of a stream, one at a time; null at its end, however it ends. */
const reader = (call) => {
  const messages = call[Symbol.asyncIterator]();
  return async () => {
    try {
      return (await messages.next()).value ?? null;
    } catch {
      return null;
    }
  };
};

class Client {
  constructor(address, options, group) {
    this.stub = new OffsetStore(address, grpc.credentials.createInsecure(), { "grpc.enable_retries": 0, ...options });
    this.group = group;
  }

  status(request, { ms = DEADLINE_MS, metadata = {}, plain = false } = {}) {
    const headers = new grpc.Metadata();
    for (const [key, value] of Object.entries(metadata)) headers.set(key, value);
    const interceptors = plain ? [(options, next) => new Plain(next(options))] : [];
    return new Promise((resolve) => {
      this.stub.CommitOffsets(request, headers, { ...within(ms), interceptors }, (error) =>
        resolve({ code: error?.code ?? 0, message: error?.details ?? "" }),
      );
    });
  }

  async send(request, options) {
    return (await this.status(request, options)).code;
  }

  commit(shard, offset, options) {
    return this.send(commit(this.group, [shard, offset]), options);
  }

  read() {
    const request = { groups: [{ group: this.group }], mode: 1 };
    return new Promise((resolve) => {
      this.stub.ReadOffsets(request, new grpc.Metadata(), within(DEADLINE_MS), (error, reply) => {
        const rows = reply?.offsets ?? [];
        resolve({
          code: error?.code ?? 0,
          rows: rows.length,
          metadata_bytes: rows.reduce((sum, row) => sum + (row.metadata ?? "").length, 0),
          sum: rows.reduce((sum, row) => sum + row.offset, 0),
        });
      });
    });
  }

  async unary(count) {
    const codes = [];
    for (const at of range(Number(count))) codes.push(await this.commit("s-0", at));
    return { codes: counted(codes) };
  }

  async large() {
    const codes = [];
    for (const request of [bulk(this.group, 1000), bulk(this.group, 1050), commit(this.group, ["after", 1])]) {
      codes.push(await this.send(request));
    }
    return { codes };
  }

  async concurrent_large() {
    const groups = range(16).map((at) => `${this.group}-${at - 1}`);
    return { codes: counted(await Promise.all(groups.map((group) => this.send(bulk(group, 256))))) };
  }

  async big_reply() {
    const code = await this.send(bulk(this.group, 500));
    return { commit: code, reads: await Promise.all(range(4).map(() => this.read())) };
  }

  async invalid() {
    const refused = await this.status(commit(this.group, ["s-0", 1], ["s-0", 1]));
    return { ...refused, after: await this.commit("s-0", 1) };
  }

  async unknown() {
    const codes = [];
    const bytes = (value) => value;
    for (const name of ["/offsets.v1.OffsetStore/NoSuchMethod", "/no.such.Service/Method"]) {
      codes.push(
        await new Promise((resolve) => {
          const done = (error) => resolve(error?.code ?? 0);
          this.stub.makeUnaryRequest(name, bytes, bytes, Buffer.alloc(0), new grpc.Metadata(), within(DEADLINE_MS), done);
        }),
      );
    }
    return { codes: [...codes, await this.commit("s-0", 1)] };
  }

  async deadline() {
    const call = this.stub.StreamCommits(new grpc.Metadata(), within(200));
    call.resume();
    const stream = await ended(call);
    const after = await this.commit("s-0", 1);
    const short = [];
    for (const at of range(20)) short.push(await this.commit("s-1", at, { ms: 1 }));
    return { stream, after, short: counted(short), last: await this.commit("s-0", 2) };
  }

  async cancel(rounds) {
    const codes = [];
    let answered = 0;
    for (const at of range(Number(rounds))) {
      const call = this.stub.StreamCommits(new grpc.Metadata(), within(DEADLINE_MS));
      const end = ended(call);
      const next = reader(call);
      call.write({ id: at, commit: commit(this.group, ["s-0", at]) });
      if (await next()) answered += 1;
      call.cancel();
      codes.push(await end);
    }
    return { answered, codes: counted(codes), after: await this.commit("s-0", Number(rounds) + 1) };
  }

  async stream(count) {
    const call = this.stub.StreamCommits(new grpc.Metadata(), within(DEADLINE_MS));
    const report = { covers: 0, replies: 0, refused: 0, ordered: true };
    call.on("data", (reply) => {
      report.covers += reply.covers;
      report.replies += 1;
      if (reply.code) report.refused += 1;
      report.ordered &&= reply.id === report.covers;
    });
    const end = ended(call);
    for (const at of range(Number(count))) {
      const room = call.write({ id: at, commit: commit(this.group, [`s-${at % 100}`, at]) });
      if (!room) await Promise.race([once(call, "drain"), end]);
    }
    call.end();
    return { code: await end, ...report };
  }

  async bidi_refused() {
    const call = this.stub.StreamCommits(new grpc.Metadata(), within(DEADLINE_MS));
    const end = ended(call);
    const next = reader(call);
    const replies = [];
    for (const [at, shards] of [[1, [["s-0", 1]]], [2, [["s-0", 1], ["s-0", 1]]], [3, [["s-0", 3]]]]) {
      call.write({ id: at, commit: commit(this.group, ...shards) });
      const { id, code = 0, covers, message = "" } = await next();
      replies.push({ id, code, covers, message });
    }
    call.end();
    await next();
    return { code: await end, replies };
  }

  async many(count, inFlight) {
    const codes = [];
    let at = 0;
    const worker = async () => {
      while (at < Number(count)) {
        at += 1;
        codes.push(await this.commit(`s-${at}`, at));
      }
    };
    await Promise.all(range(Number(inFlight)).map(worker));
    const { rows, sum } = await this.read();
    return { codes: counted(codes), rows, sum };
  }

  async compressed() {
    const refused = await this.status(bulk(this.group, 4));
    return { ...refused, after: await this.commit("s-0", 2, { plain: true }) };
  }

  async metadata() {
    const small = await this.commit("s-0", 1, { metadata: { "x-filler": "X".repeat(4096) } });
    const large = await this.status(commit(this.group, ["s-0", 2]), { metadata: { "x-filler": "X".repeat(20_480) } });
    return { small, large: large.code, message: large.message, after: await this.commit("s-0", 3) };
  }

  async server_stream() {
    // Written and read by hand: field 1 of the request is the service, field 1 of the reply is the status.
    const write = (service) => Buffer.concat([Buffer.from([0x0a, service.length]), Buffer.from(service)]);
    const read = (bytes) => bytes[1] ?? 0;
    const watch = ["/grpc.health.v1.Health/Watch", write, read, "offsets.v1.OffsetStore"];
    const call = this.stub.makeServerStreamRequest(...watch, new grpc.Metadata(), within(DEADLINE_MS));
    const end = ended(call);
    const status = await reader(call)();
    call.cancel();
    return { status, code: await end, after: await this.commit("s-0", 1) };
  }

  async keepalive(seconds) {
    const before = await this.commit("s-0", 1);
    await sleep(Number(seconds) * 1000);
    return { codes: counted([before, await this.commit("s-0", 2)]) };
  }

  async drain() {
    const ledger = { acknowledged: { stream: 0 }, codes: {}, stream_codes: {}, ending: false };
    process.stdin.on("end", () => (ledger.ending = true)).resume();
    await Promise.all([...range(8).map((at) => this.drainUnary(ledger, `w-${at - 1}`)), this.drainStream(ledger)]);
    return ledger;
  }

  async drainUnary(ledger, shard) {
    ledger.acknowledged[shard] = 0;
    while (!ledger.ending) {
      const offset = ledger.acknowledged[shard] + 1;
      const code = await this.commit(shard, offset, { ms: 5000 });
      ledger.codes[code] = (ledger.codes[code] ?? 0) + 1;
      if (code) await sleep(RETRY_MS);
      else ledger.acknowledged[shard] = offset;
    }
  }

  async drainStream(ledger) {
    const count = (code) => (ledger.stream_codes[code] = (ledger.stream_codes[code] ?? 0) + 1);
    while (!ledger.ending) {
      const call = this.stub.StreamCommits(new grpc.Metadata());
      const end = ended(call);
      const next = reader(call);
      let reply = {};
      while (reply && !ledger.ending) {
        const offset = ledger.acknowledged.stream + 1;
        call.write({ id: offset, commit: commit(this.group, ["stream", offset]) });
        reply = await next();
        if (reply?.code) {
          count(reply.code);
          await sleep(RETRY_MS);
        } else if (reply) {
          ledger.acknowledged.stream = offset;
        }
      }
      call.end();
      if (reply) await next();
      count(await end);
      await sleep(RETRY_MS);
    }
  }
}

const main = async () => {
  const [scenario, address, group, ...args] = process.argv.slice(2);
  const client = new Client(address, OPTIONS[scenario] ?? {}, group);
  const report = await client[scenario](...args);
  client.stub.close();
  process.stdout.write(`${JSON.stringify(report)}\n`);
};

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exitCode = 1;
});
