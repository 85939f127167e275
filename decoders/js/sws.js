// Reads `.sws` files: networks in a few kilobytes. One module, no dependencies, for browsers and Node.
//
//     import { load } from "./sws.js";
//     const tensors = await load("model.sws");
//     tensors.get("fc1.weight").data;  // a Float32Array
//
// Written from docs/format.md; the numbers in comments are its sections. Every product and sum is an integer below
// 2^53, so a double holds it exactly: there is no BigInt on the path of a weight.

/** The file does not hold what it should. `section` and `offset` (in bytes) say where. */
export class FormatError extends Error {
  constructor(problem, section = null, offset = null) {
    super([section === null ? null : offset === null ? section : `${section}, byte ${offset}`, problem].filter(Boolean).join(": "));
    this.name = "FormatError";
    this.problem = problem;
    this.section = section;
    this.offset = offset;
  }
}

/** An option of the caller cannot be used. */
export class ConfigError extends Error {
  constructor(message) { super(message); this.name = "ConfigError"; }
}

/** The file does not fit the network that the caller describes. */
export class ModelError extends Error {
  constructor(message) { super(message); this.name = "ModelError"; }
}

export const MAX_BYTES = 2 ** 32;  // of all decoded tensors, unless the caller says otherwise

// Limits of section 7.
const MAX_ENTRIES = 1 << 16, MAX_CODEBOOKS = 1 << 16, MAX_CODEBOOK_VALUES = (1 << 16) + 1, MAX_DIMENSIONS = 64;
const MAX_VALUES = 2 ** 40, MAX_NAME_BYTES = 1 << 12, MAX_NAMES_BYTES = 1 << 24, FAST_ABOVE = 1 << 20;
const MAGIC = [0x89, 0x53, 0x57, 0x53], VERSIONS = [1, 2];
const SUFFIXES = ["", ".weight", ".bias", ".running_mean", ".running_var", ".num_batches_tracked", ".in_proj_weight", ".in_proj_bias"]
  .map(text => new TextEncoder().encode(text));
const DTYPES = ["float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"];
const BYTES = { float32: 4, float16: 2, bfloat16: 2, float64: 8, int8: 1, int16: 2, int32: 4, int64: 8, uint8: 1, bool: 1 };
const ARRAYS = {
  float32: Float32Array, float16: Uint16Array, bfloat16: Uint16Array, float64: Float64Array, int8: Int8Array,
  int16: Int16Array, int32: Int32Array, int64: BigInt64Array, uint8: Uint8Array, bool: Uint8Array,
};
const FLOATS = 4, CODEBOOK_DTYPES = 3;  // the first dtypes are floats, and the first of these are a codebook's

// The public functions

/**
 * The tensors of a file by name. A tied name gives the same object as the name it repeats.
 * The checksum is checked before anything is decoded. `source` is an address, bytes, a Response or a stream.
 */
export async function load(source, options = {}) {
  const { worker = false, signal, ...rest } = options;
  if (worker) return loadInWorker(source, rest, signal);
  return decode(await bytesOf(source, signal), rest);
}

/** As `load`, for bytes that are there. */
export function decode(bytes, options = {}) {
  const found = new Map(), opened = open(asBytes(bytes), options);
  for (const entry of opened.entries) found.set(entry.name, decodeEntry(opened, entry));
  return new Map([...opened.wanted].map(([name, stored]) => [name, found.get(stored) ?? opened.under.get(stored)]));
}

/**
 * The stored tensors one by one, each as soon as its bytes are there: `for await (const tensor of stream(url)) ...`
 * The checksum is at the end of a file, so trust the tensors of a stream only when the loop has ended without an error.
 */
export async function* stream(source, options = {}) {
  const { signal, ...rest } = options;
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return yield* each(asBytes(source), rest);
  yield* arriving(await chunksOf(source, signal), rest);
}

/**
 * What a file holds, by its headers: the checksum is not checked, and nothing is decoded unless the file is a compact one,
 * which is small.
 */
export async function inspect(source, options = {}) {
  return inspectBytes(await bytesOf(source, options.signal));
}

/** As `inspect`, for bytes that are there. */
export function inspectBytes(bytes) {
  const data = asBytes(bytes), reader = new Reader(data, data.length - 4);
  const header = readHeader(reader, readPrefix(reader), null), sizes = header.compact?.sizes(header);
  const tensors = header.entries.map((entry, number) => {
    const named = header.hasNames ? { name: entry.name, shape: entry.shape, n: entry.n } : { name: null, shape: null, n: null };
    const common = { ...named, dtype: entry.dtype, nBytes: sizes ? sizes[number] : entry.nBytes };
    if (!entry.shared) return { ...common, kind: "rest", nNonzero: null, nComponents: 0 };
    const [nNonzero] = inSection(entry, () => readNonzero(firstBytes(data, header, entry)));
    return { ...common, kind: "shared", nNonzero, nComponents: header.codebooks[entry.codebook].length };
  });
  const inSections = tensors.reduce((sum, t) => sum + t.nBytes, 0);
  return { version: header.version, codec: header.codec, fileBytes: data.length, overheadBytes: data.length - inSections, tensors, tied: header.tied, base: header.base };
}

/** The values of a tensor as numbers. float16 and bfloat16 tensors hold bits in their `data`. */
export function toFloat32(tensor) {
  const { dtype, data } = tensor;
  if (dtype === "float32") return data;
  if (dtype === "float16" || dtype === "bfloat16") return new Float32Array(widened(data, dtype).buffer);
  return Float32Array.from(data, Number);
}

// Sources

function asBytes(source) {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  throw new ConfigError(`expected an ArrayBuffer or a typed array, got ${source === null ? "null" : typeof source}`);
}

async function* fromReadable(readable) {
  const reader = readable.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield asBytes(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** An async iterable of the source's bytes. */
async function chunksOf(source, signal) {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return [asBytes(source)];
  if (typeof source === "string" || source instanceof URL || (typeof Request !== "undefined" && source instanceof Request)) {
    const address = typeof source === "string" || source instanceof URL ? String(source) : source;
    if (isNode && typeof address === "string" && !/^(https?|data|blob):/.test(address)) {
      const { readFile } = await import("node:fs/promises");
      return [await readFile(address.startsWith("file:") ? new URL(address) : address, { signal })];
    }
    return chunksOf(await fetch(address, { signal }), signal);
  }
  if (typeof Blob !== "undefined" && source instanceof Blob) return fromReadable(source.stream());
  if (typeof Response !== "undefined" && source instanceof Response) {
    if (!source.ok) throw new ConfigError(`expected a file at ${source.url}, got status ${source.status}`);
    return source.body ? fromReadable(source.body) : [new Uint8Array(await source.arrayBuffer())];
  }
  if (source && typeof source.getReader === "function") return fromReadable(source);
  if (source && (source[Symbol.asyncIterator] || source[Symbol.iterator])) return source;
  throw new ConfigError("expected an address, bytes, a Blob, a Response or a stream of bytes, got " + (source === null ? "null" : typeof source));
}

async function bytesOf(source, signal) {
  const arrival = new Arrival();
  for await (const chunk of await chunksOf(source, signal)) arrival.add(asBytes(chunk));
  return arrival.bytes;
}

const isNode = typeof process === "object" && Boolean(process.versions?.node);

/** Bytes as they arrive, in one buffer that doubles. */
class Arrival {
  constructor() { this.room = new Uint8Array(0); this.length = 0; }
  get bytes() { return this.room.subarray(0, this.length); }
  add(chunk) {
    if (!this.length) { this.room = chunk; this.length = chunk.length; return; }
    if (this.length + chunk.length > this.room.length) {
      const more = new Uint8Array(Math.max(2 * this.room.length, this.length + chunk.length));
      more.set(this.bytes);
      this.room = more;
    }
    this.room.set(chunk, this.length);
    this.length += chunk.length;
  }
}

// Worker

async function loadInWorker(source, options, signal) {
  const direct = source instanceof ArrayBuffer || ArrayBuffer.isView(source) || typeof source === "string";
  const given = source instanceof URL ? String(source) : direct ? source : await bytesOf(source, signal);
  const address = typeof given === "string" && !isNode ? new URL(given, location.href).href : given;
  const worker = isNode
    ? new (await import("node:worker_threads")).Worker(
      `import(${JSON.stringify(import.meta.url)}).then(m => m.serve(require("node:worker_threads").parentPort))`, { eval: true })
    : new Worker(new URL(import.meta.url), { type: "module", name: "softshare-sws" });
  try {
    return await new Promise((resolve, reject) => {
      const receive = message => message.error ? reject(revived(message.error)) : resolve(message.tensors);
      signal?.addEventListener("abort", () => reject(signal.reason), { once: true });
      if (signal?.aborted) reject(signal.reason);
      if (isNode) worker.on("message", receive).on("error", reject);
      else Object.assign(worker, { onmessage: event => receive(event.data), onerror: event => reject(new Error(event.message)) });
      worker.postMessage({ source: address, options });
    });
  } finally {
    worker.terminate();
  }
}

function revived({ name, message, problem, section, offset }) {
  if (name === "FormatError") return new FormatError(problem, section, offset);
  return new ({ ConfigError, ModelError }[name] ?? Error)(message);
}

/** What a worker runs: it decodes one file for each message. */
export function serve(port) {
  const answer = async ({ source, options }) => {
    try {
      const tensors = await load(source, options);
      const buffers = new Set([...tensors.values()].flatMap(t => [t.data.buffer, ...(t.indices ? [t.indices.buffer] : [])]));
      port.postMessage({ tensors }, [...buffers]);
    } catch ({ name, message, problem, section, offset }) {
      port.postMessage({ error: { name, message, problem, section, offset } });
    }
  };
  if (typeof port.on === "function") port.on("message", answer);
  else port.onmessage = event => answer(event.data);
}

// Reading a file: its order is the order of the checks (10)

function open(data, options) {
  if (!LITTLE) throw new ConfigError("expected a little-endian machine");
  const end = data.length - 4, reader = new Reader(data, end);
  const version = readPrefix(reader);
  checkCrc(data, end);
  const header = withLayout(readHeader(reader, version, options.layout ?? null), options), under = baseOf(header, options.base);
  const wanted = wantedOf(header, options.names, under);
  const stored = new Set(wanted.values());
  const entries = header.entries.filter(entry => stored.has(entry.name));
  const budget = new Budget(header, wanted, data.length, options.maxBytes);
  for (const entry of entries) budget.add(entry, firstBytes(data, header, entry));
  budget.check();
  return { data, header, under, wanted, entries };
}

function withLayout(header, options) {
  if (header.hasNames) return header;
  if (!options.layout) {
    throw new ConfigError("the file has no names and shapes (names='none'): expected `layout`, the names and shapes of the network's tensors in order");
  }
  return { ...header, tied: new Map(Object.entries(options.tied ?? {})) };
}

function wantedOf(header, names, under) {
  const known = new Map([...(under?.keys() ?? [])].map(name => [name, name]));
  for (const { name } of header.entries) known.set(name, name);
  for (const [alias, stored] of header.tied) known.set(alias, stored);
  if (names === undefined || names === null) return known;
  if (typeof names === "string") throw new ConfigError(`names: expected a list of names, got the text '${names}'`);
  const list = [...names], unknown = list.filter(name => !known.has(name));
  if (unknown.length) throw new ConfigError(`names: expected tensors of the file (${[...known.keys()].slice(0, 50).join(", ")}), got ${unknown.join(", ")}`);
  return new Map(list.map(name => [name, known.get(name)]));
}

function* each(data, options) {
  const opened = open(data, options);
  for (const entry of opened.entries) yield decodeEntry(opened, entry);
  yield* unchanged(opened);
}

/** The wanted tensors of the base that the file does not hold. */
function* unchanged({ under, entries, wanted }) {
  const own = new Set(entries.map(entry => entry.name));
  for (const stored of new Set(wanted.values())) if (!own.has(stored)) yield { kind: "rest", ...under.get(stored), name: stored };
}

/** The tensors of a file that arrives in chunks. The header is read again whenever twice as many bytes are there. */
async function* arriving(chunks, options) {
  const arrival = new Arrival();
  let opened = null, tried = 0, next = 0, budget = null;
  for await (const chunk of chunks) {
    arrival.add(asBytes(chunk));
    if (!opened && arrival.length >= 2 * tried) {
      tried = arrival.length;
      opened = begun(arrival.bytes, options);
      if (opened) budget = new Budget(opened.header, opened.wanted, opened.fileBytes, options.maxBytes);
    }
    while (opened && next < opened.entries.length && arrival.length >= opened.entries[next].offset + opened.entries[next].nBytes) {
      const entry = opened.entries[next++];
      budget.add(entry, sectionOf(arrival.bytes, entry, FIRST_BYTES));
      budget.check();
      yield decodeEntry({ ...opened, data: arrival.bytes }, entry);
    }
  }
  if (!opened) return yield* each(arrival.bytes, options);  // a short file, or none
  const end = arrival.length - 4;
  if (end !== opened.fileBytes - 4) checkCrc(arrival.bytes, Math.max(0, end));
  if (end !== opened.fileBytes - 4) throw new FormatError(`expected sections that end at byte ${end}, got ${opened.fileBytes - 4}`, "header", opened.headerEnd);
  checkCrc(arrival.bytes, end);
  yield* unchanged(opened);
}

class Missing extends Error {}

/** The header of a file that is still arriving; null if a part of it is missing. */
function begun(data, options) {
  const reader = new Reader(data, data.length, true);
  try {
    const header = withLayout(readHeader(reader, readPrefix(reader), options.layout ?? null), options), under = baseOf(header, options.base);
    const wanted = wantedOf(header, options.names, under), stored = new Set(wanted.values());
    return { header, under, wanted, entries: header.entries.filter(e => stored.has(e.name)), headerEnd: reader.offset, fileBytes: header.end + 4 };
  } catch (error) {
    if (error instanceof Missing) return null;
    throw error;
  }
}

const FIRST_BYTES = 9;  // of a section: enough for its number of non-zeros and for the modes of all planes

/** What decoding may cost (7). */
class Budget {
  constructor(header, wanted, fileBytes, maxBytes = MAX_BYTES) {
    Object.assign(this, { header, fileBytes, maxBytes, steps: 0 });
    if (maxBytes === null) return;
    const sizes = new Map(header.entries.map(e => [e.name, e.n * BYTES[e.dtype]]));
    let total = 0;
    for (const stored of wanted.values()) total += sizes.get(stored) ?? 0;  // 0: of the base
    if (total > maxBytes) {
      throw new FormatError(`expected at most ${maxBytes} bytes of decoded tensors, got ${total}, each tied name counted; raise maxBytes to allow it`, "header", 0);
    }
  }
  add(entry, first) {
    this.steps += 1 << 14;
    if (!entry.shared) {
      const size = BYTES[entry.stored];
      let modes = 0;
      for (let k = 0; entry.planes && k < Math.ceil(size / 4); k++) modes += (first[k] ?? 0) * 2 ** (8 * k);
      for (let k = 0; k < size; k++) this.steps += Math.floor(modes / 4 ** k) % 4 === CODED ? (entry.static ? 1 : 16) * entry.n : 0;
      return;
    }
    let nNonzero;
    try {
      [nNonzero] = readNonzero(first);
    } catch {
      return;  // refused as soon as it is decoded
    }
    const [rows, cols] = entry.n ? matrixShape(entry) : [0, 0];
    this.steps += 16 * ((entry.rowScales ? rows : 0) + (entry.columnScales ? cols : 0));
    if (entry.static || nNonzero === 0 || this.header.codec === "han") { this.steps += entry.n; return; }
    const bits = bitLength(Math.max(0, this.header.codebooks[entry.codebook].length - 2));
    this.steps += (entry.n <= FAST_ABOVE && !entry.bands ? 6 : 1) * entry.n + 5 * bits * Math.min(nNonzero, entry.n);
  }
  check() {
    if (this.maxBytes === null) return;
    const limit = (2 ** 30 + 128 * this.fileBytes) * Math.max(1, this.maxBytes / MAX_BYTES);
    if (this.steps <= limit) return;
    const enough = Math.ceil(Math.max(this.maxBytes, MAX_BYTES) * this.steps / limit);
    throw new FormatError(`expected at most ${limit} steps of decoding from ${this.fileBytes} bytes, got ${this.steps}; if you trust the file, raise maxBytes to ${enough}`, "header", 0);
  }
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});

function hex(octets) { return Array.from(octets, x => x.toString(16).padStart(2, "0")).join(""); }

function checkCrc(data, end) {
  let crc = -1;
  for (let k = 0; k < end; k++) crc = CRC_TABLE[(crc ^ data[k]) & 255] ^ (crc >>> 8);
  crc = ~crc;
  const stored = data.subarray(end, end + 4);
  const computed = [crc & 255, (crc >>> 8) & 255, (crc >>> 16) & 255, crc >>> 24];
  if (hex(stored) !== hex(computed)) {
    throw new FormatError(`expected ${hex(computed)}, got ${hex(stored)}: the file is damaged or cut short`, "checksum", end);
  }
}

// The header (3, 4)

class Reader {
  constructor(data, end, partial = false) {
    Object.assign(this, { data, end, offset: 0, section: "prefix", partial, low: 0 });
  }
  get remaining() { return this.partial ? Infinity : this.end - this.offset; }
  fail(problem, at = this.offset) { throw new FormatError(problem, this.section, at); }
  expect(condition, expected, got, at) {
    if (!condition) this.fail(`expected ${expected}, got ${typeof got === "string" ? repr(got) : got}`, at);
  }
  take(n) {
    if (this.offset + n > this.end) {
      if (this.partial) throw new Missing();
      this.fail(`expected ${n} more bytes, got ${this.end - this.offset}: the file is cut short or altered`);
    }
    this.offset += n;
    return this.data.subarray(this.offset - n, this.offset);
  }
  byte() { return this.take(1)[0]; }
  /** Exact below 2^53, and near the value above, where every limit refuses it. `low` is its lowest 7 bits. */
  varint() {
    const start = this.offset;
    let value = 0, octet = 0, groups = 0;
    do {
      octet = this.byte();
      value += (octet & 127) * 2 ** (7 * groups);
      if (!groups++) this.low = octet & 127;
    } while (octet >= 128 && groups < 9);
    this.expect(octet < 128, "an integer below 2^63", "a longer one", start);
    this.expect(octet > 0 || groups === 1, "an integer in as few bytes as it needs", octet, start);
    return value;
  }
}

function readPrefix(reader) {
  const magic = [...reader.take(reader.partial ? 4 : Math.max(0, Math.min(4, reader.remaining)))];
  reader.expect(magic.length === 4 && magic.every((x, k) => x === MAGIC[k]), "a file that begins with 89 53 57 53, as every .sws file does", magic.join(" "), 0);
  const version = reader.byte();
  if (!VERSIONS.includes(version)) reader.fail(`expected version ${VERSIONS.join(" or ")}, got ${version}. Another version of softshare may read it`, 4);
  return version;
}

function readHeader(reader, version, layout) {
  reader.section = "header";
  const flags = reader.byte();
  if (version > 1 && flags === COMPACT) return readCompact(reader);
  const most = version === 1 ? 4 : 8, hasNames = Boolean(flags & 2);
  reader.expect(flags < most, `flags below ${most}`, flags, reader.offset - 1);
  reader.expect(hasNames || !(flags & 4), "names in a file of differences", flags, reader.offset - 1);
  const base = flags & 4 ? hex(reader.take(32)) : null;
  const codebooks = [];
  for (let k = 0, n = readCount(reader, MAX_CODEBOOKS, "codebooks"); k < n; k++) codebooks.push(readCodebook(reader, k));
  reader.section = "header";
  const nEntries = readCount(reader, MAX_ENTRIES, "tensors");
  const given = hasNames ? null : layout;
  if (given && given.length !== nEntries) throw new ModelError(`expected a network of ${nEntries} tensors, the number in the file, got ${given.length}`);
  const names = { stem: new Uint8Array(0), total: 0 }, entries = [];
  let before = { dtype: "float32", codebook: 0 }, shape = [];
  for (let k = 0; k < nEntries; k++) {
    reader.section = `header, tensor ${k}`;
    const entry = readKind(reader, before, codebooks.length, version);
    if (hasNames) {
      entry.name = readName(reader, names);
      shape = readShape(reader, shape);
    } else {
      entry.name = given ? given[k].name ?? given[k][0] : `#${k}`;
      shape = given ? [...(given[k].shape ?? given[k][1])] : [];
    }
    entry.shape = shape;
    entry.n = shape.reduce((a, b) => a * b, 1);
    entries.push(entry);
    if (entry.shared) before = entry;
  }
  const tied = new Map();
  if (hasNames) {
    reader.section = "header, tied names";
    for (let k = 0, n = readCount(reader, MAX_ENTRIES, "tied names"); k < n; k++) {
      const start = reader.offset, alias = readName(reader, names), number = reader.varint();
      reader.expect(number < entries.length, `a tensor below ${entries.length}`, number, start);
      reader.expect(!tied.has(alias), "each name once", alias, start);
      tied.set(alias, entries[number].name);
    }
  }
  reader.section = "header";
  if (base) readAlone(reader, entries);
  let end = reader.offset;
  for (const entry of entries) { entry.offset = end; end += entry.nBytes; }
  if (!reader.partial) reader.expect(end === reader.end, `sections that end at byte ${reader.end}`, end);
  const total = entries.reduce((sum, entry) => sum + countedValues(entry.shape), 0);
  if (total > MAX_VALUES) reader.fail(`expected at most ${MAX_VALUES} values over all tensors, got ${total}`);
  if (!(flags & 1) && entries.some(entry => entry.bands)) reader.fail("expected no bands with codec 'han', got some");
  const all = [...entries.map(entry => entry.name), ...tied.keys()];
  if (new Set(all).size < all.length) {
    reader.fail(`expected each name once, got ${all.filter((name, k) => all.indexOf(name) < k).slice(0, 3).map(repr).join(", ")} more than once`);
  }
  const needed = base || entries.some(entry => entry.static || entry.bands || entry.rowScales || entry.columnScales) ? 2 : 1;
  if (needed !== version) reader.fail(`expected version ${needed}, whose features the file has, got ${version}`, 4);
  return { version, base, codec: flags & 1 ? "adaptive" : "han", hasNames, codebooks, entries, tied, end };
}

/** The shared tensors of a file of differences that stand alone (3.5): numbers of entries that rise. */
function readAlone(reader, entries) {
  for (let k = 0, before = -1, n = readCount(reader, MAX_ENTRIES, "tensors that stand alone"); k < n; k++) {
    const start = reader.offset, number = reader.varint();
    const rises = number > before && number < entries.length && entries[number].shared;
    reader.expect(rises, `a shared tensor above ${before} and below ${entries.length}`, number, start);
    entries[number].standsAlone = true;
    before = number;
  }
}

/** A count of items. Each takes at least a byte, so there are no more than bytes left. */
function readCount(reader, most, what) {
  const start = reader.offset, n = reader.varint(), limit = Math.min(most, reader.remaining);
  reader.expect(n <= limit, `at most ${limit} ${what}`, n, start);
  return n;
}

function readCodebook(reader, number) {
  reader.section = `codebook ${number}`;
  const start = reader.offset, packed = reader.varint(), code = reader.low & 3, n = Math.floor(packed / 4);
  reader.expect(code < CODEBOOK_DTYPES, `a dtype below ${CODEBOOK_DTYPES}`, code, start);
  reader.expect(n < MAX_CODEBOOK_VALUES, `fewer than ${MAX_CODEBOOK_VALUES} values other than 0`, n, start);
  const dtype = DTYPES[code], own = reader.take(n * BYTES[dtype]).slice(), values = new Float32Array(n + 1);
  if (dtype === "float32") values.set(new Float32Array(own.buffer), 1);
  else new Uint32Array(values.buffer).set(widened(new Uint16Array(own.buffer), dtype), 1);
  let before = 0;
  for (let k = 1; k <= n; k++) {
    const magnitude = Math.abs(values[k]);
    if (!(magnitude > 0 && magnitude < Infinity && magnitude >= before)) {
      reader.fail(`expected finite values other than 0, ordered by magnitude, got ${[...values.slice(1, 9)].join(", ")}`, start);
    }
    before = magnitude;
  }
  return values;
}

function readKind(reader, before, nCodebooks, version) {
  const start = reader.offset, packed = reader.varint(), plain = reader.low & 1, nBytes = Math.floor(packed / 2);
  const first = plain ? 0 : reader.byte();
  if (first & 1) {
    const coded = version > 1 && Boolean(first & 128), dtype = dtypeOf(reader, coded ? first >> 3 & 15 : first >> 3, DTYPES.length);
    reader.expect(!coded || first & 2, "byte planes for a static code of them", first, reader.offset - 1);
    const stored = first & 4 ? dtypeOf(reader, reader.byte(), DTYPES.length) : dtype;
    const floats = DTYPES.indexOf(stored) < FLOATS && DTYPES.indexOf(dtype) < FLOATS;
    reader.expect(!(first & 4) || (floats && BYTES[stored] < BYTES[dtype]), `a narrower dtype that decodes to ${dtype}`, stored, start);
    return { nBytes, shared: false, dtype, stored, planes: Boolean(first & 2), static: coded };
  }
  const { dtype, codebook, ...form } = plain ? before : readSharedKind(reader, first, version);
  reader.expect(codebook < nCodebooks, `a codebook below ${nCodebooks}`, codebook, start);
  return { nBytes, shared: true, dtype, codebook, static: form.static, bands: form.bands, rowScales: form.rowScales, columnScales: form.columnScales };
}

function readSharedKind(reader, first, version) {
  reader.expect(version === 1 || (first & 144) !== 144, "a static code or bands, not both", first, reader.offset - 1);
  const bits = version === 1 ? 0 : first, dtype = dtypeOf(reader, version === 1 ? first >> 1 : first >> 1 & 7, FLOATS);
  const [bands, rowScales, columnScales, coded] = [16, 32, 64, 128].map(bit => Boolean(bits & bit));
  return { dtype, codebook: reader.varint(), bands, rowScales, columnScales, static: coded };
}

function dtypeOf(reader, code, known) {
  reader.expect(code < known, `a dtype below ${known}`, code, reader.offset - 1);
  return DTYPES[code];
}

function readName(reader, names) {
  const start = reader.offset, first = reader.byte();
  let prefix = first & 31;
  if (prefix === 31) prefix += reader.varint();
  reader.expect(prefix <= names.stem.length, `at most ${names.stem.length} bytes of the name before`, prefix, start);
  const n = reader.varint();
  reader.expect(prefix + n <= MAX_NAME_BYTES, `a name of at most ${MAX_NAME_BYTES} bytes`, prefix + n, start);
  const stem = new Uint8Array(prefix + n), suffix = SUFFIXES[first >> 5];
  stem.set(names.stem.subarray(0, prefix));
  stem.set(reader.take(n), prefix);
  names.stem = stem;
  const name = new Uint8Array(stem.length + suffix.length);
  name.set(stem);
  name.set(suffix, stem.length);
  names.total += name.length;
  reader.expect(names.total <= MAX_NAMES_BYTES, `names of at most ${MAX_NAMES_BYTES} bytes`, names.total, start);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(name);
  } catch {
    reader.fail(`expected a name in UTF-8, got ${[...name.subarray(0, 40)].map(x => x.toString(16).padStart(2, "0")).join(" ")}`, start);
  }
  reader.expect(name.length >= 1 && name.length <= MAX_NAME_BYTES, `a name of 1 to ${MAX_NAME_BYTES} bytes`, name.length, start);
  reader.expect(!/[\0-\x1f\x7f-\x9f]/.test(text), "a name without control characters", text.slice(0, 40), start);
  return text;
}

function readShape(reader, before) {
  const start = reader.offset, nDims = reader.byte();
  if (nDims === 128 && before.length) return before.slice(0, 1);
  reader.expect(nDims <= MAX_DIMENSIONS, `at most ${MAX_DIMENSIONS} dimensions`, nDims, start);
  const shape = [];
  for (let k = 0; k < nDims; k++) shape.push(reader.varint());
  reader.expect(countedValues(shape) <= MAX_VALUES, `sizes of at most ${MAX_VALUES} values together`, shape.slice(0, 8).join(" x "), start);
  return shape;
}

/** The number of values, with a size of 0 counted as 1. */
function countedValues(shape) { return shape.reduce((product, size) => product * Math.max(size, 1), 1); }

/** A text as Python writes it, for messages that name a tensor. */
function repr(text) {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const hex = (c, n) => c.codePointAt(0).toString(16).padStart(n, "0");
  const escape = c => {
    if (c === "\\" || c === quote) return "\\" + c;
    if (c === "\n" || c === "\r" || c === "\t") return { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[c];
    if (c === " " || !/[\p{C}\p{Z}]/u.test(c)) return c;
    return c.codePointAt(0) < 256 ? "\\x" + hex(c, 2) : c.codePointAt(0) < 65536 ? "\\u" + hex(c, 4) : "\\U" + hex(c, 8);
  };
  return quote + [...text].map(escape).join("") + quote;
}

// Sections (5, 6)

function sectionOf(data, entry, most) { return data.subarray(entry.offset, entry.offset + Math.min(entry.nBytes, most)); }

/** Errors name the tensor of the section, and the byte where the section begins. */
function inSection(entry, read) {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof FormatError)) throw error;
    throw new FormatError(error.problem, `tensor ${repr(entry.name)}`, entry.offset);
  }
}

function fail(problem) { throw new FormatError(problem); }

function firstBytes(data, header, entry) {
  return header.compact ? header.compact.sectionOf(entry) : sectionOf(data, entry, FIRST_BYTES);
}

function decodeEntry({ data, header, under }, entry) {
  if (header.compact) return header.compact.tensor(header, entry);
  const section = sectionOf(data, entry, entry.nBytes), { name, dtype, shape } = entry;
  const tensor = inSection(entry, () => entry.shared
    ? { name, kind: "shared", dtype, shape, ...decodeShared(section, entry, header.codebooks[entry.codebook], header.codec) }
    : { name, kind: "rest", dtype, shape, data: decodeRest(section, entry) });
  const of = entry.shared && !entry.standsAlone ? under?.get(name) : null;
  return of && differsFrom(of, shape) ? { ...tensor, data: restored(tensor, of) } : tensor;
}

/** The number of non-zeros at the beginning of a section, and the byte where the code starts. */
function readNonzero(section) {
  if (!section.length) return [0, 0];
  const reader = new Reader(section, section.length), nNonzero = reader.varint();
  reader.expect(nNonzero > 0, "an empty section for a tensor of zeros", nNonzero, 0);
  return [nNonzero, reader.offset];
}

function decodeShared(section, entry, codebook, codec, coder = null) {
  const [nNonzero, start] = readNonzero(section), nValues = codebook.length, most = nValues > 1 ? entry.n : 0;
  if (nNonzero > most) fail(`expected at most ${most} non-zero weights, got ${nNonzero}`);
  const [rows, cols] = matrixShape(entry), reader = new Reader(section, section.length);
  reader.offset = start;
  let rowScales = null, columnScales = null;
  if ((entry.rowScales || entry.columnScales) && entry.shape.length < 2) fail(`expected scales of a tensor of two or more dimensions, got ${entry.shape.length}`);
  if (nNonzero) {
    if (entry.rowScales) rowScales = readScales(reader, rows);
    if (entry.columnScales) columnScales = readScales(reader, cols);
  }
  checkLargest(codebook, rowScales, columnScales, entry.dtype);
  let indices;
  if (nNonzero) {
    const code = section.subarray(reader.offset);
    if (coder) indices = decodeNext(coder, code, rows, cols, nValues, nNonzero);
    else if (entry.static) indices = decodeStatic(reader, rows, cols, nValues, true);
    else if (entry.bands) indices = decodeBands(reader, rows, cols, nValues, nNonzero);
    else indices = codec === "han" ? decodeHan(code, rows, cols, entry.shape.length > 2 ? 8 : 5, nValues) : decodeAdaptive(code, rows, cols, nValues, nNonzero);
    let found = 0, high = 0;
    for (let k = 0; k < indices.length; k++) {
      const index = indices[k];
      if (index !== 0) found++;
      if (index > high) high = index;
    }
    if (found !== nNonzero || high >= nValues) fail(`expected ${nNonzero} non-zero indices below ${nValues}, got ${found} up to ${high}`);
  } else {
    indices = newIndices(entry.n, nValues);
  }
  if (rowScales || columnScales) return { data: scaled(indices, codebook, rowScales, columnScales, cols, entry.dtype), indices, codebook, nNonzero, rowScales, columnScales };
  const values = rounded(codebook, entry.dtype), data = new ARRAYS[entry.dtype](entry.n);
  for (let k = 0; k < data.length; k++) data[k] = values[indices[k]];
  return { data, indices, codebook, nNonzero };
}

/** One row for each entry of the first dimension; a tensor of fewer than two dimensions is one row. */
function matrixShape({ shape, n }) {
  return shape.length < 2 ? [1, n] : [shape[0], shape.slice(1).reduce((a, b) => a * b, 1)];
}

function readScales(reader, n) {
  const start = reader.offset, length = reader.varint();
  reader.expect(length <= n, `the scales of ${n} rows or columns in at most ${n} bytes`, length, start);
  const data = reader.take(length), octets = length < n ? decodePlanes(data, n, 1) : data.slice();
  return new Int8Array(octets.buffer);
}

// 2^(s / 4) as float32 numbers, for the sums s from -256 to 254
const FACTORS = Float32Array.from({ length: 511 }, (_, k) => [1, 0x1306fe0 / 2 ** 24, 0x16a09e6 / 2 ** 24, 0x1ae89fa / 2 ** 24][k & 3] * 2 ** ((k >> 2) - 64));

/** The largest weight that codebook and scales allow must be finite in the tensor's dtype. */
function checkLargest(codebook, rowScales, columnScales, dtype) {
  const highest = scales => scales ? scales.reduce((a, b) => Math.max(a, b), -128) : 0;
  const value = Math.fround(codebook[codebook.length - 1] * FACTORS[highest(rowScales) + highest(columnScales) + 256]);
  const largest = toFloat32({ dtype, data: rounded(Float32Array.of(value), dtype) })[0];
  if (!Number.isFinite(largest)) fail(`expected weights within the range of ${dtype}, got up to ${value}`);
}

/** Codebook values times the factors of their rows and columns, rounded to float32 and then to the dtype. */
function scaled(indices, codebook, rowScales, columnScales, cols, dtype) {
  const values = new Float32Array(indices.length);
  for (let k = 0, i = 0; k < values.length; i++) {
    const row = (rowScales ? rowScales[i] : 0) + 256;
    for (let j = 0; j < cols; j++, k++) values[k] = codebook[indices[k]] * FACTORS[columnScales ? row + columnScales[j] : row];
  }
  return rounded(values, dtype);
}

function newIndices(n, nValues) { return new (nValues <= 256 ? Uint8Array : nValues <= 65536 ? Uint16Array : Uint32Array)(n); }

function decodeRest(section, entry) {
  const { n, dtype, stored, planes } = entry, itemsize = BYTES[stored], size = n * itemsize;
  let octets;
  if (planes) {
    if (section.length >= size) fail(`expected fewer than ${size} bytes by byte plane, got ${section.length}`);
    octets = entry.static ? decodeStaticPlanes(section, entry, itemsize) : decodePlanes(section, n, itemsize);
  } else {
    if (section.length !== size) fail(`expected ${size} bytes, got ${section.length}`);
    octets = section.slice();
  }
  if (stored === "bool" && octets.some(octet => octet > 1)) fail(`expected bools of 0 or 1, got ${Math.max(...octets)}`);
  const values = new ARRAYS[stored](octets.buffer);
  if (stored === dtype) return values;
  const bits = stored === "float32" ? new Uint32Array(octets.buffer) : widened(values, stored);
  return dtype === "float32" ? new Float32Array(bits.buffer) : doubled(bits);
}

// Floats, bit by bit: so a NaN stays a NaN, with its sign and payload

const LITTLE = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;

/** float32 bits of float16 or bfloat16 bits. A NaN becomes a quiet one. */
function widened(bits, dtype) {
  const out = new Uint32Array(bits.length);
  for (let k = 0; k < bits.length; k++) {
    const b = bits[k];
    if (dtype === "bfloat16") { out[k] = b << 16; continue; }
    const sign = (b & 0x8000) << 16, exponent = (b >> 10) & 31, fraction = b & 1023;
    if (exponent === 31) out[k] = sign | 0x7f800000 | (fraction ? 0x400000 | (fraction << 13) : 0);
    else if (exponent) out[k] = sign | ((exponent + 112) << 23) | (fraction << 13);
    else if (fraction) {
      const shift = Math.clz32(fraction) - 21;  // to bring its highest bit to bit 10
      out[k] = sign | ((113 - shift) << 23) | (((fraction << shift) & 1023) << 13);
    } else out[k] = sign;
  }
  return out;
}

/** float64 values of float32 bits. */
function doubled(bits) {
  const floats = new Float32Array(bits.buffer, bits.byteOffset, bits.length), out = new Float64Array(bits.length);
  const words = new Uint32Array(out.buffer);
  for (let k = 0; k < bits.length; k++) {
    out[k] = floats[k];
    if ((bits[k] & 0x7fffffff) > 0x7f800000) {
      words[2 * k] = (bits[k] & 7) << 29;
      words[2 * k + 1] = (bits[k] & 0x80000000) | 0x7ff80000 | ((bits[k] & 0x7fffff) >>> 3);
    }
  }
  return out;
}

/** float32 values rounded to a dtype, to nearest, ties to even, in that dtype's array. */
function rounded(values, dtype) {
  if (dtype === "float32") return values;
  if (dtype === "float64") return Float64Array.from(values);
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length), out = new Uint16Array(values.length);
  for (let k = 0; k < bits.length; k++) {
    const b = bits[k], sign = (b >>> 16) & 0x8000, magnitude = b & 0x7fffffff;
    if (dtype === "bfloat16") out[k] = (b + 0x7fff + ((b >>> 16) & 1)) >>> 16;
    else if (magnitude >= 0x477ff000) out[k] = sign | 0x7c00;  // half of the last step and more: infinity
    else if (magnitude >= 0x38800000) out[k] = sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >>> 13) & 1)) >>> 13);
    else {  // below float16's normal range: multiples of 2^-24
      const scaled = Math.abs(values[k]) * 2 ** 24, floor = Math.floor(scaled), rest = scaled - floor;
      out[k] = sign | (floor + (rest > 0.5 || (rest === 0.5 && floor % 2) ? 1 : 0));
    }
  }
  return out;
}

// Differences from a base (3.5)

/** The tensors that a file of differences differs from; null if it stands alone. */
function baseOf(header, base) {
  if (!header.base) {
    if (base) throw new ConfigError("base: the file stands alone and differs from no base; leave base out");
    return null;
  }
  const short = header.base.slice(0, 16);
  if (!base) throw new ConfigError(`the file holds differences from another checkpoint, with the SHA-256 ${short}...; give its tensors as \`base\``);
  const tensors = new Map(base), found = digestOf(tensors);
  if (found !== header.base) throw new ModelError(`base: expected the checkpoint that the file was made from, with the SHA-256 ${short}..., got another one, ${found.slice(0, 16)}...`);
  return tensors;
}

function digestOf(tensors) {
  const sha = new Sha256(), sorted = [...tensors].map(([name, tensor]) => [new TextEncoder().encode(name), tensor]);
  sorted.sort(([a], [b]) => {
    for (let k = 0; k < Math.min(a.length, b.length); k++) if (a[k] !== b[k]) return a[k] - b[k];
    return a.length - b.length;
  });
  for (const [name, { dtype, shape, data }] of sorted) {
    sha.add([...varint(name.length), ...name, DTYPES.indexOf(dtype), ...varint(shape.length), ...shape.flatMap(varint)]);
    sha.add(asBytes(data));
  }
  return sha.hex();
}

function varint(value) { return value < 128 ? [value] : [value % 128 + 128, ...varint(Math.floor(value / 128))]; }

function differsFrom(of, shape) {
  return DTYPES.indexOf(of.dtype) < FLOATS && of.shape.length === shape.length && of.shape.every((size, k) => size === shape[k]);
}

/** Base plus difference. A difference of 0 changes no bit. */
function restored({ dtype, shape, indices, codebook, rowScales, columnScales }, of) {
  const [, cols] = matrixShape({ shape, n: indices.length }), steps = scaled(indices, codebook, rowScales, columnScales, cols, "float32");
  const sums = of.dtype === "float64" ? of.data.slice() : toFloat32(of).slice();  // the sum of two floats is rounded once
  for (let k = 0; k < sums.length; k++) if (steps[k] !== 0) sums[k] += steps[k];
  if (dtype === "float64") return Float64Array.from(sums);
  const floats = Float32Array.from(sums), data = rounded(floats, dtype);
  for (let k = 0; k < floats.length; k++) {
    if (steps[k] === 0 && of.dtype === dtype) data[k] = of.data[k];
    else if (Number.isNaN(floats[k]) && dtype !== "float32") data[k] = dtype === "bfloat16" ? 0x7fc0 : 0x7e00;
  }
  return data;
}

const PRIMES = Array.from({ length: 312 }, (_, n) => n).filter(n => n > 1 && !Array.from({ length: n - 2 }, (_, k) => k + 2).some(k => n % k === 0));
const fraction = x => Math.floor((x - Math.floor(x)) * 2 ** 32);  // no root of these is near a multiple of 2^-32

/** FIPS 180-4. Not `crypto.subtle`, which wants to be waited for, and a secure page. */
class Sha256 {
  constructor() {
    this.state = Int32Array.from(PRIMES.slice(0, 8), n => fraction(Math.sqrt(n)));
    this.constants = Int32Array.from(PRIMES, n => fraction(Math.cbrt(n)));
    this.words = new Int32Array(64);
    Object.assign(this, { block: new Uint8Array(64), filled: 0, length: 0 });
  }
  add(octets) {
    this.length += octets.length;
    for (let at = 0; at < octets.length;) {
      const n = Math.min(64 - this.filled, octets.length - at);
      for (let k = 0; k < n; k++) this.block[this.filled + k] = octets[at + k];
      at += n;
      this.filled += n;
      if (this.filled === 64) this.mix();
    }
  }
  mix() {
    const { state, constants, words, block } = this;
    for (let k = 0; k < 16; k++) words[k] = block[4 * k] << 24 | block[4 * k + 1] << 16 | block[4 * k + 2] << 8 | block[4 * k + 3];
    for (let k = 16; k < 64; k++) {
      const x = words[k - 15], y = words[k - 2];
      words[k] = words[k - 16] + words[k - 7] + (turned(x, 7) ^ turned(x, 18) ^ x >>> 3) + (turned(y, 17) ^ turned(y, 19) ^ y >>> 10);
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let k = 0; k < 64; k++) {
      const one = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + (e & f ^ ~e & g) + constants[k] + words[k] | 0;
      const two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + (a & b ^ a & c ^ b & c) | 0;
      h = g; g = f; f = e; e = d + one | 0;
      d = c; c = b; b = a; a = one + two | 0;
    }
    [a, b, c, d, e, f, g, h].forEach((x, k) => { state[k] += x; });
    this.filled = 0;
  }
  hex() {
    const bits = 8 * this.length, end = new Uint8Array((this.filled < 56 ? 64 : 128) - this.filled);
    end[0] = 128;
    for (let k = 0; k < 7; k++) end[end.length - 1 - k] = Math.floor(bits / 2 ** (8 * k)) % 256;
    this.add(end);
    return Array.from(this.state, x => (x >>> 0).toString(16).padStart(8, "0")).join("");
  }
}

function turned(x, n) { return x >>> n | x << 32 - n; }

// The adaptive codec: tables (8.1)

function bitLength(n) { return n < 1 ? 0 : n < 2 ** 31 ? 32 - Math.clz32(n) : 32 + bitLength(Math.floor(n / 2 ** 32)); }

const LIMIT = 3071, FLOOR = 8192, CEILING = 2 ** 30 - FLOOR, LAST = 4095, WEIGHT = 65536, WEIGHT_LIMIT = 1 << 20;
const RATE = Float64Array.from({ length: LAST + 1 }, (_, n) => Math.floor(131072 / (2 * n + 3)) / 65536);
let SQUASH = null, STRETCH = null;

/**
 * SQUASH is exact though `Math.exp` need not be: no value is within 0.0003 of the middle between two integers, and an
 * error of `Math.exp` in its 13th digit moves a value by less than a millionth. A test compares the table.
 */
function makeTables() {
  if (SQUASH) return;
  const squash = new Int32Array(2 * LIMIT + 1);
  for (let x = 0; x <= LIMIT; x++) {
    const high = Math.round(4194304 / (1 + Math.exp(-x / 256)));
    squash[LIMIT + x] = high;
    squash[LIMIT - x] = 4194304 - high;
  }
  STRETCH = new Int16Array(65536);
  for (let k = 0, x = -LIMIT; k < 65536; k++) {
    while (x < LIMIT && squash[LIMIT + x] < 64 * k + 32) x++;
    STRETCH[k] = x;
  }
  SQUASH = squash;
}

/** An estimate of 2^30 moves towards a bit. The product has 46 bits and its scaling is exact, so floor is the shift. */
function learned(estimate, target, uses) {
  const moved = estimate + Math.floor((target - estimate) * RATE[uses]);
  return moved < FLOOR ? FLOOR : moved > CEILING ? CEILING : moved;
}

// Range coder and mixing (8.2)

/** A decoder's range, code and place, in doubles: none has more than 48 bits. */
class Coder {
  constructor(data) {
    makeTables();
    this.data = data;
    this.at = new Float64Array([2 ** 40, tail(data, 0), 5]);
  }

  bit(probability) {
    const at = this.at;
    let range = at[0], code = at[1], bit = 0;
    const bound = Math.floor(range * 2 ** -22) * probability;
    if (code < bound) {
      bit = 1;
      range = bound;
    } else {
      range -= bound;
      code -= bound;
    }
    while (range < 4294967296) {
      const place = at[2]++;
      range *= 256;
      code = code * 256 + (place < this.data.length ? this.data[place] : 0);
    }
    at[0] = range;
    at[1] = code;
    return bit;
  }

  get spent() { return this.at[2] > this.data.length + 5; }

  /** Raise unless the data are exactly what an encoder writes. */
  checkEnd() {
    const [range, distance, most] = this.at, { data } = this, least = most - 5;
    if (data.length < least || data.length > most) fail(`expected ${least} to ${most} bytes of code, got ${data.length}`);
    const code = tail(data, least), low = code - distance;
    let shortest = 0;
    for (let zeros = 40; zeros >= 0; zeros--) {
      shortest = Math.ceil(low / 2 ** zeros) * 2 ** zeros;
      if (shortest < low + range) break;
    }
    if (code !== shortest || (data.length > least && data[data.length - 1] === 0)) {
      fail(`expected the shortest code, got ${data.length} bytes ending in ${[...data.subarray(least)].join(" ")}`);
    }
  }
}

/** Five bytes of the code as a number, the highest first. Zeros follow the end. */
function tail(data, start) {
  let value = 0;
  for (let k = start; k < start + 5; k++) value = value * 256 + (k < data.length ? data[k] : 0);
  return value;
}

/** The contexts of one kind of decision: estimates and uses of their states, and scratch for the mix. */
class Mixer {
  constructor(nStates, estimate, uses, nGiven, nContexts, nSets, contextWeight) {
    this.estimates = new Int32Array(nStates).fill(estimate);
    this.uses = new Uint16Array(nStates).fill(uses);
    this.size = nGiven + nContexts;
    this.nGiven = nGiven;
    this.weights = new Float64Array(nSets * this.size).fill(contextWeight);
    for (let k = 0; k < nSets; k++) this.weights[k * this.size] = WEIGHT;
    this.inputs = new Float64Array(this.size);
    this.slots = new Int32Array(nContexts);
  }
}

/** Predict a decision by the weighted sum of log-odds, decode it, and learn from it. */
function mixedBit(coder, mixer, set, rate) {
  const { inputs, slots, estimates, uses, weights, nGiven, size } = mixer, from = set * size, base = inputs[0];
  let mix = 32768;
  for (let k = 0; k < nGiven; k++) mix += weights[from + k] * inputs[k];
  for (let k = nGiven; k < size; k++) {
    const distance = STRETCH[estimates[slots[k - nGiven]] >> 14] - base;
    inputs[k] = distance;
    mix += weights[from + k] * distance;
  }
  mix = Math.floor(mix * 2 ** -16);
  const probability = SQUASH[(mix < -LIMIT ? -LIMIT : mix > LIMIT ? LIMIT : mix) + LIMIT];
  const bit = coder.bit(probability);
  const error = (((bit << 22) - probability) >> 6) * rate;
  for (let k = 0; k < size; k++) {
    const weight = weights[from + k] + Math.floor((inputs[k] * error + 8388608) * 2 ** -24);
    weights[from + k] = weight < -WEIGHT_LIMIT ? -WEIGHT_LIMIT : weight > WEIGHT_LIMIT ? WEIGHT_LIMIT : weight;
  }
  const target = bit * 1073741824;
  for (let k = 0; k < slots.length; k++) {
    const slot = slots[k], used = uses[slot];
    estimates[slot] = learned(estimates[slot], target, used);
    if (used < LAST) uses[slot] = used + 1;
  }
  return bit;
}

function decodeAdaptive(data, rows, cols, nValues, nNonzero) {
  const n = rows * cols, fast = n > FAST_ABOVE;
  if (!data.length) fail("expected a first byte that names the model, got no data");
  const first = data[0], longest = Math.min(127, cols - 1), coder = new Coder(data.subarray(1));
  if (fast && first !== 128) fail(`expected a first byte of 128 for ${n} weights, got ${first}`);
  if (!fast && first !== 0 && !(first >= 2 && first <= longest)) fail(`expected a period of 0 or 2 to ${longest}, got ${first}`);
  const indices = newIndices(n, nValues);
  const density = densityOf(nNonzero, n);
  if (fast) decodeFast(indices, rows, cols, nValues, nNonzero, density, coder);
  else decodeFull(indices, rows, cols, first, nValues, nNonzero, density, coder);
  coder.checkEnd();
  return indices;
}

/** The density of a tensor as an estimate. */
function densityOf(nNonzero, n) { return Math.min(CEILING, Math.max(FLOOR, Number((BigInt(nNonzero) << 30n) / BigInt(n)))); }

// Values (8.5)

class Values {
  constructor(coder, cols, nValues) {
    this.coder = coder;
    this.most = nValues - 1;
    this.depth = bitLength(nValues - 2);
    this.table = 2 ** Math.min(16, bitLength(Math.max(256, cols) - 1) + this.depth);
    this.mixer = new Mixer(6 * this.table, 3 * 2 ** 27, 0, 1, 6, Math.max(1, this.depth), 9830);
    this.contexts = new Int32Array(6);
  }

  read() {
    const { depth, table, mixer, contexts, most } = this, mask = table - 1;
    let value = 0;
    for (let level = 0; level < depth; level++) {
      const half = 1 << (depth - 1 - level), node = (1 << level) + value;
      value *= 2;
      if ((value + 1) * half >= most) continue;  // the upper half holds no value
      for (let k = 0; k < 6; k++) mixer.slots[k] = k * table + ((node + (contexts[k] << depth)) & mask);
      mixer.inputs[0] = STRETCH[mixer.estimates[mixer.slots[0]] >> 14];
      value += mixedBit(this.coder, mixer, level, 1024);
    }
    return value + 1;
  }
}

/** The level of a density (in 2^-16), 0 to 8, by its distance from the tensor's log-odds. */
function levelOf(density, origin) {
  const level = (STRETCH[density < 65535 ? density : 65535] - origin + 1152) >> 8;
  return level < 0 ? 0 : level > 8 ? 8 : level;
}

// The full model (8.4)

function decodeFull(indices, rows, cols, period, nValues, nNonzero, density, coder) {
  const origin = STRETCH[density >> 14], margin = 2 * Math.max(1, period);
  const row = new Int32Array(margin + cols), column = new Int32Array(2 * margin + cols).fill(density);
  const mixer = new Mixer(5 * 512, density, 2, 4, 5, 1, 9830), values = new Values(coder, cols, nValues);
  const { inputs, slots } = mixer, { contexts } = values;
  const rates = Float64Array.from({ length: 150 }, (_, k) => Math.max(131, Math.floor(2621440 / (1000 + 128 * k))));
  const lags = period ? [1, period, period + 1, period - 1, 2, 2 * period] : [1, 2];
  let left = nNonzero, nLeft = rows * cols, decided = 0;
  for (let i = 0; i < rows; i++) {
    let inRow = density, recent = density, run = 0, runLevel = 0, line = 0, inLine = 0;
    for (let j = 0; j < cols; j++) {
      if (left === 0 || coder.spent) return;
      const at = margin + j, here = column[at], columnLevel = levelOf(here >> 14, origin);
      let nonzero = 1;
      if (left < nLeft) {
        const left1 = row[at - 1] ? 1 : 0, left2 = row[at - 2] ? 1 : 0;
        let around = (2 * here + column[at - 1] + column[at + 1]) >>> 2, near = 0, above = 0;
        if (period) {
          around = (2 * around + column[at - period] + column[at + period]) >>> 2;
          above = row[at - period] ? 1 : 0;
          near = 32 * above + (row[at - period - 1] ? 16 : 0) + (row[at - period + 1] ? 8 : 0) + (row[at - 2 * period] ? 4 : 0);
        }
        const base = STRETCH[Math.floor(left * 65536 / nLeft)];
        inputs[0] = base;
        inputs[1] = STRETCH[inRow >> 14] - base;
        inputs[2] = STRETCH[here >> 14] - base;
        inputs[3] = STRETCH[around >> 14] - base;
        slots[0] = near + 2 * left1 + left2;
        slots[1] = 512 + 2 * (line & 255) + left1;
        slots[2] = 1024 + 4 * (9 * levelOf(recent >> 14, origin) + columnLevel) + 2 * left1 + above;
        slots[3] = 1536 + 9 * runLevel + levelOf(around >> 14, origin);
        slots[4] = 2048 + 9 * levelOf(inRow >> 14, origin) + columnLevel;
        nonzero = mixedBit(coder, mixer, 0, rates[decided < 19072 ? decided >> 7 : 149]);
        decided++;
        const target = nonzero * 1073741824;
        column[at] = learned(here, target, i + 2 < LAST ? i + 2 : LAST);
        inRow = learned(inRow, target, j + 2 < LAST ? j + 2 : LAST);
        recent = learned(recent, target, j + 2 < 16 ? j + 2 : 16);
      }
      nLeft--;
      if (++inLine === period) { line++; inLine = 0; }
      if (!nonzero) {
        row[at] = 0;
        if (++run >> runLevel && runLevel < 11) runLevel++;
        continue;
      }
      left--;
      run = runLevel = 0;
      contexts[1] = contexts[2] = 0;
      for (let k = 0; k < lags.length; k++) {
        const index = row[at - lags[k]];
        if (!index) continue;
        if (contexts[1]) { contexts[2] = index; break; }
        contexts[1] = index;
      }
      contexts[3] = 16 * Math.min(15, row[at - 1]) + (period ? Math.min(15, row[at - period]) : 0);
      contexts[4] = j;
      contexts[5] = columnLevel;
      indices[i * cols + j] = row[at] = values.read();
    }
  }
}

// The fast model (8.6)

function decodeFast(indices, rows, cols, nValues, nNonzero, initial, coder) {
  const density = Number((BigInt(nNonzero) << 16n) / BigInt(rows * cols)), origin = STRETCH[Math.min(65535, density)];
  const level = (count, seen) => levelOf(Math.floor((count * 65536 + 4 * density) / (seen + 4)), origin);
  const estimates = new Int32Array(324).fill(initial), uses = new Uint16Array(324).fill(2);
  const counts = new Int32Array(cols), levels = new Uint8Array(cols), values = new Values(coder, cols, nValues), { contexts } = values;
  let left = nNonzero, nLeft = rows * cols;
  for (let i = 0; i < rows; i++) {
    if (i < 16 || i % 16 === 0) for (let j = 0; j < cols; j++) levels[j] = 4 * level(counts[j], i);
    let inRow = 0, recent = 0, rowSlot = 0, last = 0;
    for (let j = 0; j < cols; j++) {
      if (coder.spent) return;
      if (j % 16 === 0) rowSlot = 36 * level(inRow, j);
      let nonzero = 1;
      if (left < nLeft) {
        const slot = rowSlot + levels[j] + recent;
        nonzero = coder.bit(estimates[slot] >> 8);
        estimates[slot] = learned(estimates[slot], nonzero * 1073741824, uses[slot]);
        if (uses[slot] < LAST) uses[slot]++;
      }
      nLeft--;
      recent = (2 * recent + nonzero) & 3;
      if (!nonzero) continue;
      contexts[1] = last;
      contexts[3] = j > 0 ? Math.min(15, indices[i * cols + j - 1]) : 0;
      contexts[4] = j;
      contexts[5] = levels[j] >> 2;
      last = indices[i * cols + j] = values.read();
      if (--left === 0) return;
      inRow++;
      rowSlot = 36 * level(inRow, j + 1);
      counts[j]++;
      levels[j] = 4 * level(counts[j], i + 1);
    }
  }
}

// The compact form (15): one code for the header and all tensors

const COMPACT = 11, OUTLINE_BYTES = 1024, OUTLINE_TENSORS = 128, OUTLINE_VALUES = 2 ** 20, LONGEST_NUMBER = 40;
const [COUNT, VALUES, FORM, ZEROS, FIRST, STEP, PREFIX, LETTERS, DIMENSIONS, ROWS, , , NONZERO, PERIOD] = Array.from({ length: 14 }, (_, k) => k);
const OF_NUMBER = 48, SIGN = 14 * OF_NUMBER, PLAIN = SIGN + 1, SAME = PLAIN + 1, VECTOR = SAME + 2, CHAIN = VECTOR + 8, SUFFIX = CHAIN + 1, LETTER = SUFFIX + 128;
const PRIMER =
  "4578003450003b27e9d9f96ca6edf0102ce37c7262569a0039d4b19f15ebfe69edd7f65083d00635ed8ef892cdc25946227f" +
  "516ade1ca1d5eab8c6c18fbc33fd21c414fed31ae60423823711f6426ca8c27b1e09279bbdea356052eb8522537c7467edc0" +
  "b2bfe40e57829bbc7ecfd7830d84218d80f195a3c3ce51fcd2a92c68936df82e56f72483c8a668";
let primed = null;

/** The fields of the header, each decision under a state of its own (15.2). */
class Fields {
  constructor(coder, { estimates, uses }) {
    Object.assign(this, { coder, estimates: estimates.slice(), uses: uses.slice(), out: [] });
  }
  bit(place) {
    const estimate = this.estimates[place], used = this.uses[place], bit = this.coder.bit(estimate >> 8);
    this.estimates[place] = learned(estimate, bit * 1073741824, used);
    if (used < LAST) this.uses[place]++;
    return bit;
  }
  tree(place, nBits) {
    let node = 1;
    for (let k = 0; k < nBits; k++) node = 2 * node + this.bit(place + node);
    return node - (1 << nBits);
  }
  number(kind) {
    const place = kind * OF_NUMBER;
    let nBits = 0, node = 1;
    while (this.bit(place + Math.min(nBits, 15))) if (++nBits > LONGEST_NUMBER) fail("expected a number below 2^41, got a larger one");
    const tree = place + 16 + 4 * Math.min(nBits, 7);
    for (let k = 0; k < nBits; k++) node = 2 * node + (node < 4 ? this.bit(tree + node) : this.coder.bit(1 << 21));
    return node - 1;
  }
  add(value) {  // as a varint
    for (; value > 127; value = Math.floor(value / 128)) this.out.push(value % 128 + 128);
    this.out.push(value);
    if (this.out.length > OUTLINE_BYTES) fail(`expected a header of at most ${OUTLINE_BYTES} bytes, got more`);
    return value;
  }
  varint(kind) {
    const value = this.number(kind);
    this.add(value);
    return value;
  }
}

/** An ordinary file without the codes of its sections: its header, and numbers of non-zeros and periods (15.3). */
function readOutline(fields) {
  const { out } = fields, least = (value, most, what) => value > most ? fail(`expected ${what} up to ${most}, got ${value}`) : value;
  const name = stem => {
    const same = fields.bit(SAME + stem.same);
    let prefix = stem.octets.length;
    if (!same) {
      prefix = least(fields.number(PREFIX), stem.octets.length, "bytes of the name before");
      stem.octets = stem.octets.slice(0, prefix);
      for (let k = 0, n = least(fields.number(LETTERS), OUTLINE_BYTES, "bytes of a name"); k < n; k++) stem.octets.push(fields.tree(LETTER, 8));
    }
    stem.suffix = fields.tree(SUFFIX + 64 * same + 8 * stem.suffix, 3);
    stem.same = same;
    out.push(stem.suffix << 5 | Math.min(prefix, 31));
    if (prefix >= 31) fields.add(prefix - 31);
    fields.add(stem.octets.length - prefix);
    out.push(...stem.octets.slice(prefix));
  };
  out.push(...MAGIC, 1, 3);
  for (let k = 0, n = least(fields.varint(COUNT), OUTLINE_BYTES, "a count"); k < n; k++) readCompactBook(fields, least);
  const nTensors = least(fields.varint(COUNT), OUTLINE_TENSORS, "a number of tensors"), places = [];
  const stem = { octets: [], same: 0, suffix: 0 };
  for (let k = 0, first = -1; k < nTensors; k++) {
    places.push(out.length);
    out.push(fields.bit(PLAIN));
    if (!out[out.length - 1]) {
      out.push(least(fields.number(FORM), FLOATS - 1, "a dtype") << 1);
      fields.varint(FORM);
    }
    name(stem);
    if (first >= 0 && fields.bit(VECTOR + stem.suffix)) {
      out.push(128);
      continue;
    }
    const nDims = least(fields.number(DIMENSIONS), MAX_DIMENSIONS, "dimensions"), before = first;
    out.push(nDims);
    first = -1;
    for (let dim = 0; dim < nDims; dim++) {
      const size = dim === 1 && before >= 0 && fields.bit(CHAIN) ? before : fields.number(ROWS + Math.min(dim, 2));
      fields.add(size);
      if (dim === 0) first = size;
    }
  }
  for (let k = 0, n = least(fields.varint(COUNT), OUTLINE_BYTES, "a count"); k < n; k++) {
    name(stem);
    fields.varint(COUNT);
  }
  for (const place of places) {
    const start = out.length, nNonzero = fields.number(NONZERO);
    if (nNonzero) {
      fields.add(nNonzero);
      out.push(least(fields.number(PERIOD), 127, "a period"));
    }
    out[place] |= (out.length - start) << 1;
  }
  if (out.length > OUTLINE_BYTES) fail(`expected a header of at most ${OUTLINE_BYTES} bytes, got ${out.length}`);
  return Uint8Array.from(out);
}

/** Magnitudes rise, so their differences are coded, without the zero bits that all of them end in. */
function readCompactBook(fields, least) {
  const n = fields.number(VALUES), form = least(fields.number(FORM), CODEBOOK_DTYPES - 1, "a dtype"), width = BYTES[DTYPES[form]];
  least(n * width, OUTLINE_BYTES, "bytes of a codebook");
  fields.add(4 * n + form);
  const unit = 2 ** least(fields.number(ZEROS), 8 * width - 2, "zero bits"), sign = 2 ** (8 * width - 1);
  for (let k = 0, before = 0; k < n; k++) {
    const negative = fields.bit(SIGN);
    before += fields.number(k ? STEP : FIRST);
    let value = negative * sign + least(before * unit, sign - 1, "a magnitude");
    for (let b = 0; b < width; b++, value = Math.floor(value / 256)) fields.out.push(value % 256);
  }
  if (fields.out.length > OUTLINE_BYTES) fail(`expected a header of at most ${OUTLINE_BYTES} bytes, got ${fields.out.length}`);
}

/** What the models of a header know at the start: they have decoded that of a made-up network (15.4). */
function primedStates() {
  if (!primed) {
    const octets = Uint8Array.from({ length: PRIMER.length / 2 }, (_, k) => parseInt(PRIMER.slice(2 * k, 2 * k + 2), 16));
    const states = { estimates: new Int32Array(LETTER + 256).fill(2 ** 29), uses: new Uint16Array(LETTER + 256) };
    primed = new Fields(new Coder(octets), states);
    readOutline(primed);
  }
  return primed;
}

function readCompact(reader) {
  if (reader.partial) throw new Missing();
  const start = reader.offset, coder = new Coder(reader.take(reader.remaining));
  try {
    const outline = readOutline(new Fields(coder, primedStates())), inner = new Reader(outline, outline.length);
    inner.offset = 5;
    const header = readHeader(inner, 1, null);
    const total = header.entries.reduce((sum, entry) => sum + countedValues(entry.shape), 0);
    if (total > OUTLINE_VALUES) fail(`expected at most ${OUTLINE_VALUES} values in a compact file, got ${total}`);
    if (!header.entries.length) coder.checkEnd();
    return { ...header, version: 2, compact: new Compact(coder, outline, start) };
  } catch (error) {
    if (!(error instanceof FormatError)) throw error;
    throw new FormatError(error.problem, "header", start);
  }
}

/** The tensors of a compact file, which decode one after another. */
class Compact {
  constructor(coder, outline, start) { Object.assign(this, { coder, outline, start, next: 0 }); }

  sectionOf(entry) { return sectionOf(this.outline, entry, entry.nBytes); }

  /** All tensors up to this one are decoded. */
  tensor(header, wanted) {
    for (;;) {
      const entry = header.entries[this.next++], { name, dtype, shape } = entry;
      const found = inSection({ name, offset: this.start }, () => {
        const decoded = decodeShared(this.sectionOf(entry), entry, header.codebooks[entry.codebook], "adaptive", this.coder);
        if (this.next === header.entries.length) this.coder.checkEnd();
        return decoded;
      });
      if (entry === wanted) return { name, kind: "shared", dtype, shape, ...found };
    }
  }

  /** The bytes of each tensor; 0 from the first one that is broken. */
  sizes(header) {
    const found = new Array(header.entries.length).fill(0);
    try {
      header.entries.forEach((entry, k) => {
        const before = this.coder.at[2];
        this.tensor(header, entry);
        found[k] = this.coder.at[2] - before;
      });
    } catch (error) {
      if (!(error instanceof FormatError)) throw error;
    }
    return found;
  }
}

/** The next tensor of a code that goes on. */
function decodeNext(coder, section, rows, cols, nValues, nNonzero) {
  const period = section[0], longest = Math.min(127, cols - 1), n = rows * cols, indices = newIndices(n, nValues);
  if (period !== 0 && !(period >= 2 && period <= longest)) fail(`expected a period of 0 or 2 to ${longest}, got ${period}`);
  decodeFull(indices, rows, cols, period, nValues, nNonzero, densityOf(nNonzero, n), coder);
  if (coder.spent) fail(`expected a code that goes on to the end of the tensor, got only ${coder.data.length} bytes`);
  return indices;
}

// Bands (14)

function decodeBands(reader, rows, cols, nValues, nNonzero) {
  const bits = reader.byte();
  if (bits < 1 || bits > 4 || 2 ** bits > rows) fail(`expected 2 to 16 bands of ${rows} rows, got 2^${bits}`);
  const bands = Array.from({ length: 2 ** bits }, (_, k) => ({ from: Math.floor(k * rows / 2 ** bits), to: Math.floor((k + 1) * rows / 2 ** bits) }));
  for (const band of bands) Object.assign(band, { n: reader.varint(), length: reader.varint() });
  let total = 0, at = reader.offset;
  for (const band of bands) {
    const most = (band.to - band.from) * cols;
    if (band.n > most) fail(`expected at most ${most} non-zeros in a band, got ${band.n}`);
    if (band.n === 0 && band.length !== 0) fail(`expected no code for a band of zeros, got ${band.length} bytes`);
    band.at = at;
    at += band.length;
    total += band.n;
  }
  if (total !== nNonzero) fail(`expected bands of ${nNonzero} non-zeros together, got ${total}`);
  if (at !== reader.end) fail(`expected bands that end at byte ${reader.end}, got ${at}`);
  const indices = newIndices(rows * cols, nValues);
  for (const { from, to, n, at: start, length } of bands) {
    if (!n) continue;
    const coder = new Coder(reader.data.subarray(start, start + length));
    decodeFast(indices.subarray(from * cols, to * cols), to - from, cols, nValues, n, densityOf(n, (to - from) * cols), coder);
    coder.checkEnd();
  }
  return indices;
}

// The static code (13)

/** The symbols of a matrix. `whole`: the code ends where the reader does. */
function decodeStatic(reader, rows, cols, nSymbols, whole) {
  const n = rows * cols;
  if (n < 1 || nSymbols < 2 || nSymbols > 256) fail(`expected 2 to 256 different symbols of one number at least, got ${nSymbols} of ${n}`);
  const [laneBits, chunkBits, form] = reader.take(3), nTables = (form & 7) + 1, axis = form >> 3;
  if (laneBits > 5) fail(`expected lanes of up to 2^5, got 2^${laneBits}`);
  if (chunkBits < 6 || chunkBits > 16) fail(`expected chunks of 2^6 to 2^16 numbers, got 2^${chunkBits}`);
  if (axis > 2 || (axis > 0) !== (nTables > 1)) fail(`expected an axis of several tables, got ${form}`);
  const bases = axis ? readClasses(reader, axis === 1 ? rows : cols, nTables) : new Int32Array(1);
  const lookup = new Uint32Array(4096 * nTables);
  for (let k = 0; k < nTables; k++) readTable(reader, nSymbols, lookup.subarray(4096 * k, 4096 * (k + 1)));
  const nChunks = Math.ceil(n / 2 ** chunkBits), lanes = 1 << laneBits, counts = new Uint16Array(reader.take(2 * nChunks).slice().buffer);
  const units = counts.reduce((sum, words) => sum + words + 2 * lanes, 0);
  if (whole && reader.remaining !== 2 * units) fail(`expected a static code of ${2 * units} bytes of chunks, got ${reader.remaining}`);
  const words = new Uint16Array(reader.take(2 * units).slice().buffer), out = new Uint8Array(n);
  for (let k = 0, at = 0; k < nChunks; k++) {
    const start = k * 2 ** chunkBits, end = Math.min(n, start + 2 ** chunkBits), own = words.subarray(at, at + 2 * lanes + counts[k]);
    const good = axis ? decodeClassed(own, lanes, lookup, bases, axis, cols, start, end, out) : decodeChunk(own, lanes, lookup, start, end, out);
    if (!good) fail(`expected states that end at 65536 after the last word of a chunk, got others in chunk ${k}`);
    at += own.length;
  }
  return out;
}

/** Where the table of each row or column begins. */
function readClasses(reader, n, nTables) {
  const bits = bitLength(nTables - 1), packed = reader.take(Math.ceil(n * bits / 8)), bases = new Int32Array(n);
  const bit = k => (packed[Math.floor(k / 8)] >> (k % 8)) & 1;
  for (let k = 0; k < n; k++) {
    let found = 0;
    for (let l = 0; l < bits; l++) found |= bit(k * bits + l) << l;
    if (found >= nTables) fail(`expected classes below ${nTables}, got ${found}`);
    bases[k] = 4096 * found;
  }
  for (let k = n * bits; k < 8 * packed.length; k++) if (bit(k)) fail("expected zeros after the last class, got 1");
  return bases;
}

/** For each slot: symbol | (frequency - 1) << 8 | (slot - cum) << 20. */
function readTable(reader, nSymbols, lookup) {
  let total = 0;
  for (let symbol = 0; symbol < nSymbols; symbol++) {
    const frequency = reader.varint();
    if (total + frequency > 4096) fail(`expected frequencies of sum 4096, got ${total + frequency}`);
    for (let k = 0; k < frequency; k++) lookup[total + k] = symbol | (frequency - 1) << 8 | k << 20;
    total += frequency;
    if (frequency === 0) symbol += reader.varint();
    if (symbol >= nSymbols) fail(`expected ${nSymbols} frequencies, got ${symbol + 1}`);
  }
  if (total !== 4096) fail(`expected frequencies of sum 4096, got ${total}`);
}

function startStates(own, lanes) {
  const states = new Uint32Array(lanes);
  for (let lane = 0; lane < lanes; lane++) {
    states[lane] = own[2 * lane] | own[2 * lane + 1] << 16;
    if (states[lane] < 65536) return null;
  }
  return states;
}

/** With one table. False if the chunk is bad: a word past the end reads as none, so that the end shows it. */
function decodeChunk(own, lanes, lookup, start, end, out) {
  const states = startStates(own, lanes), mask = lanes - 1;
  if (!states) return false;
  let at = 2 * lanes;
  for (let k = start; k < end; k++) {
    const lane = (k - start) & mask, state = states[lane], entry = lookup[state & 4095];
    out[k] = entry;
    let next = (Math.imul((entry >>> 8 & 4095) + 1, state >>> 12) + (entry >>> 20)) >>> 0;
    if (next < 65536) next = next << 16 | own[at++];
    states[lane] = next;
  }
  return at === own.length && states.every(state => state === 65536);
}

/** With a table for each class of rows (axis 1) or columns (axis 2). */
function decodeClassed(own, lanes, lookup, bases, axis, cols, start, end, out) {
  const states = startStates(own, lanes), mask = lanes - 1;
  if (!states) return false;
  let at = 2 * lanes, row = Math.floor(start / cols), column = start % cols;
  for (let k = start; k < end; k++) {
    const lane = (k - start) & mask, state = states[lane], entry = lookup[bases[axis === 1 ? row : column] + (state & 4095)];
    out[k] = entry;
    let next = (Math.imul((entry >>> 8 & 4095) + 1, state >>> 12) + (entry >>> 20)) >>> 0;
    if (next < 65536) next = next << 16 | own[at++];
    states[lane] = next;
    if (++column === cols) { column = 0; row++; }
  }
  return at === own.length && states.every(state => state === 65536);
}

/** Byte planes with the static code (13.4). */
function decodeStaticPlanes(section, entry, itemsize) {
  const { n, stored } = entry, [rows, cols] = matrixShape(entry), reader = new Reader(section, section.length), octets = new Uint8Array(n * itemsize);
  if (n < 1) fail("expected no static code of a tensor without numbers, got one");
  const modes = readModes(reader.take(Math.ceil(itemsize / 4)), itemsize);
  for (let plane = itemsize - 1; plane >= 0; plane--) {
    if (modes[plane] === 0) continue;
    const constant = modes[plane] === CONSTANT ? reader.byte() : null;
    if (constant === 0) fail(`expected a constant other than 0 in plane ${plane}, got 0`);
    const values = modes[plane] === RAW ? reader.take(n) : modes[plane] === CODED ? decodeStatic(reader, rows, cols, 256, false) : null;
    for (let i = 0; i < n; i++) octets[i * itemsize + plane] = constant ?? values[i];
  }
  if (reader.remaining) fail(`expected planes that end with their section, got ${reader.remaining} bytes more`);
  for (let i = 0; DTYPES.indexOf(stored) < FLOATS && i < octets.length; i += itemsize) {  // rotate back by one bit
    const lowest = octets[i] & 1;
    for (let k = 0; k < itemsize; k++) octets[i + k] = octets[i + k] >> 1 | (k + 1 < itemsize ? octets[i + k + 1] & 1 : lowest) << 7;
  }
  return octets;
}

function readModes(data, itemsize) {
  const header = data.reduce((sum, octet, k) => sum + octet * 2 ** (8 * k), 0);
  if (header >= 4 ** itemsize) fail(`expected the modes of ${itemsize} planes, got ${header}`);
  return Array.from({ length: itemsize }, (_, k) => Math.floor(header / 4 ** k) % 4);
}

// Byte planes (8.7)

const CONSTANT = 1, CODED = 2, RAW = 3;

function decodePlanes(data, n, itemsize) {
  let position = Math.ceil(itemsize / 4);
  if (data.length < position) fail(`expected the modes of ${itemsize} planes in ${position} bytes, got ${data.length}`);
  const octets = new Uint8Array(n * itemsize), modes = readModes(data.subarray(0, position), itemsize);
  for (let plane = itemsize - 1; plane >= 0; plane--) {
    if (modes[plane] !== CONSTANT && modes[plane] !== RAW) continue;
    const size = modes[plane] === CONSTANT ? 1 : n;
    if (data.length < position + size) fail(`expected ${size} bytes of plane ${plane}, got ${data.length - position}`);
    if (size === 1 && modes[plane] === CONSTANT && !data[position]) fail(`expected a constant other than 0 in plane ${plane}, got 0`);
    for (let i = 0; i < n; i++) octets[i * itemsize + plane] = data[modes[plane] === CONSTANT ? position : position + i];
    position += size;
  }
  const coder = new Coder(data.subarray(position));
  for (let plane = itemsize - 1; plane >= 0; plane--) if (modes[plane] === CODED) decodePlane(octets, n, itemsize, plane, coder);
  coder.checkEnd();
  return octets;
}

function decodePlane(octets, n, itemsize, plane, coder) {
  const mixer = new Mixer(3 * 65536, 2 ** 29, 0, 1, 3, 8, 19660), { slots, inputs, estimates } = mixer;
  for (let i = 0, before = 0; i < n && !coder.spent; i++) {
    const after = plane + 1 < itemsize ? octets[i * itemsize + plane + 1] : 0;
    let node = 1;
    for (let level = 0; level < 8; level++) {
      slots[0] = node;
      slots[1] = 65536 + 256 * before + node;
      slots[2] = 131072 + 256 * after + node;
      inputs[0] = STRETCH[estimates[node] >> 14];
      node = 2 * node + mixedBit(coder, mixer, level, 1310);
    }
    before = octets[i * itemsize + plane] = node & 255;
  }
}

// The codec of appendix A (9)

class Bits {
  constructor(data) { this.data = data; this.position = 0; }
  get remaining() { return 8 * this.data.length - this.position; }
  require(n) {
    if (n > this.remaining) fail(`expected ${n} more bits at bit ${this.position}, got ${this.remaining}: the data ends too early`);
  }
  read(width) {
    this.require(width);
    let value = 0;
    for (let k = 0; k < width; k++) value = 2 * value + this.bit();
    return value;
  }
  bit() {
    const place = this.position++;
    return (this.data[Math.floor(place / 8)] >> (7 - place % 8)) & 1;
  }
}

function decodeHan(data, rows, cols, gapBits, nValues) {
  const reader = new Bits(data), most = rows * cols, width = reader.read(6);
  if (width < 1 || width > bitLength(most)) fail(`expected row starts of 1 to ${bitLength(most)} bits for ${most} weights, got ${width}`);
  reader.require(width * rows);
  const ends = new Float64Array(rows);
  for (let i = 0, before = 0; i < rows; i++) {
    ends[i] = reader.read(width);
    if (ends[i] < before) fail("expected row starts that do not fall, got one below the one before it");
    before = ends[i];
  }
  const n = ends[rows - 1];
  if (n < 1 || n > most) fail(`expected 1 to ${most} entries, got ${n}`);
  const gaps = readHuffman(reader, n, 2 ** gapBits), entries = readHuffman(reader, n, nValues), indices = newIndices(most, nValues);
  for (let i = 0, k = 0; i < rows; i++) {
    for (let column = -1; k < ends[i]; k++) {
      column += gaps[k] + 1;
      if (column >= cols) fail(`expected columns below ${cols} in row ${i}, got ${column}`);
      indices[i * cols + column] = entries[k];
    }
  }
  if (reader.remaining >= 8) fail(`expected the data to end at bit ${reader.position}, got ${reader.remaining} bits more`);
  if (reader.read(reader.remaining) !== 0) fail("expected zeros in the unused bits of the last byte, got ones");
  return indices;
}

function readHuffman(reader, count, alphabet) {
  const last = reader.read(bitLength(alphabet - 1));
  if (last >= alphabet) fail(`expected symbols below ${alphabet} in a Huffman table, got ${last}`);
  const width = reader.read(3);
  if (width < 1 || width > 5) fail(`expected Huffman lengths of 1 to 5 bits, got ${width} bits`);
  reader.require(width * (last + 1));
  const perLength = new Float64Array(32), used = [];
  for (let symbol = 0; symbol <= last; symbol++) {
    const length = reader.read(width);
    if (length) { used.push([length, symbol]); perLength[length]++; }
  }
  const alone = used.length === 1 && used[0][0] === 1;
  const kraft = perLength.reduce((sum, number, length) => sum + (length ? number * 2 ** -length : 0), 0);
  if (!alone && kraft !== 1) fail(`expected Huffman code lengths with a Kraft sum of 1, got ${kraft}`);
  const symbols = used.sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(pair => pair[1]);
  reader.require(count);  // a code has at least one bit
  const found = new Uint32Array(count);
  for (let k = 0; k < count; k++) {
    let code = 0, first = 0, place = 0;
    for (let length = 1; ; length++) {
      reader.require(1);
      code = 2 * code + reader.bit();
      first *= 2;
      if (code - first < perLength[length]) { found[k] = symbols[place + code - first]; break; }
      if (alone) fail("expected only zeros for a Huffman code of one symbol, got ones");
      place += perLength[length];
      first += perLength[length];
    }
  }
  return found;
}

if (typeof WorkerGlobalScope !== "undefined" && self instanceof WorkerGlobalScope && self.name === "softshare-sws") serve(self);
