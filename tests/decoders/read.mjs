// Reads files for the tests: one JSON request a line on stdin, one JSON answer a line on stdout.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { decode, inspectBytes, load, stream } from "../../decoders/js/sws.js";

const digest = tensor => {
  const { buffer, byteOffset, byteLength } = tensor.data;
  const hash = createHash("sha256").update(new Uint8Array(buffer, byteOffset, byteLength)).digest("hex");
  return `${tensor.dtype} [${tensor.shape.join(", ")}] ${hash}`;
};

async function* inChunks(bytes, size) {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function answer({ path, hex, base, how = "decode", chunk = 7, ...options }) {
  if (base) options.base = decode(Buffer.from(base, "hex"));
  const bytes = path === undefined ? Buffer.from(hex, "hex") : readFileSync(path);
  try {
    if (how === "inspect") return { info: inspectBytes(bytes), tied: [...inspectBytes(bytes).tied] };
    if (how === "load") return { digests: digests(await load(path, options)) };
    if (how === "stream") {
      const found = [];
      for await (const tensor of stream(inChunks(bytes, chunk), options)) found.push([tensor.name, digest(tensor)]);
      return { digests: found };
    }
    return { digests: digests(decode(bytes, options)) };
  } catch ({ name, message, section, offset }) {
    return { error: name, section: section ?? null, offset: offset ?? null, message };
  }
}

const digests = tensors => [...tensors].map(([name, tensor]) => [name, digest(tensor)]);

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await answer(JSON.parse(line))) + "\n");
}
