/** Where a file comes from. In Node, a text without `http:`, `https:`, `data:` or `blob:` is a path. */
export type Source =
  | string
  | URL
  | Request
  | Response
  | Blob
  | ArrayBuffer
  | ArrayBufferView
  | ReadableStream<Uint8Array>
  | AsyncIterable<Uint8Array>;

export type Dtype =
  | "float32" | "float16" | "bfloat16" | "float64" | "int8" | "int16" | "int32" | "int64" | "uint8" | "bool";

export type TensorData =
  | Float32Array | Float64Array | Int8Array | Int16Array | Int32Array | BigInt64Array | Uint8Array | Uint16Array;

interface Common {
  /** The name under which it is stored. A tied name gives the same object. */
  name: string;
  dtype: Dtype;
  shape: number[];
  /** Row-major. float16 and bfloat16 are bits in a Uint16Array (see `toFloat32`); a bool is 0 or 1. */
  data: TensorData;
}

/** A tensor of indices into a codebook. */
export interface SharedTensor extends Common {
  kind: "shared";
  /** Of each weight, into the codebook. */
  indices: Uint8Array | Uint16Array | Uint32Array;
  /** The first value is 0. The others do not fall in magnitude. */
  codebook: Float32Array;
  nNonzero: number;
  /** Of version 2: the factor of a row or column is 2^(scale / 4). `data` has the scaled weights, if there are any. */
  rowScales?: Int8Array | null;
  columnScales?: Int8Array | null;
}

/** A tensor that is stored as it is. */
export interface RestTensor extends Common {
  kind: "rest";
}

export type Tensor = SharedTensor | RestTensor;

export interface Options {
  /** Decode only these tensors. Default: all. */
  names?: Iterable<string> | null;
  /** The most bytes that the decoded tensors may take, a tied tensor counted under each name. Null: no limit. */
  maxBytes?: number | null;
  /** For a file without names: name and shape of the network's tensors, in the order of its state dict. */
  layout?: Array<[name: string, shape: number[]] | { name: string; shape: number[] }> | null;
  /** For a file without names: the tied names, each with the name that it repeats. */
  tied?: Record<string, string>;
  /**
   * For a file of differences: the tensors of the checkpoint that it was made from, all of them. Another checkpoint is a
   * `ModelError`. Names that the file lacks keep the base's tensors.
   */
  base?: Iterable<readonly [name: string, tensor: Pick<Tensor, "dtype" | "shape" | "data">]> | null;
}

export interface LoadOptions extends Options {
  /** Decode in a worker, so that the page stays responsive. */
  worker?: boolean;
  /** Stops the transfer. */
  signal?: AbortSignal;
}

export interface TensorInfo {
  /** Null in a file without names, like `shape` and `n`. */
  name: string | null;
  kind: "shared" | "rest";
  dtype: Dtype;
  shape: number[] | null;
  n: number | null;
  /** Of a shared tensor. */
  nNonzero: number | null;
  /** Values of its codebook, zero included; 0 for the rest. */
  nComponents: number;
  nBytes: number;
}

export interface FileInfo {
  version: number;
  codec: "han" | "adaptive";
  fileBytes: number;
  /** Everything outside the tensors' own sections. */
  overheadBytes: number;
  tensors: TensorInfo[];
  /** The tied names, each with the name that it repeats. */
  tied: Map<string, string>;
  /** SHA-256 of the checkpoint that the file holds differences from, or null. `load` then needs it as `base`. */
  base: string | null;
}

/** The default of `maxBytes`: 2^32. */
export declare const MAX_BYTES: number;

/** The tensors of a file by name. The checksum is checked before anything is decoded. */
export declare function load(source: Source, options?: LoadOptions): Promise<Map<string, Tensor>>;

/** As `load`, for bytes that are there. */
export declare function decode(bytes: ArrayBuffer | ArrayBufferView, options?: Options): Map<string, Tensor>;

/** The stored tensors, each as soon as its bytes have arrived. The checksum is checked at the end. */
export declare function stream(
  source: Source,
  options?: Options & { signal?: AbortSignal },
): AsyncGenerator<Tensor, void, void>;

/** What a file holds, by its headers. Nothing is decoded, and the checksum is not checked. */
export declare function inspect(source: Source, options?: { signal?: AbortSignal }): Promise<FileInfo>;

/** As `inspect`, for bytes that are there. */
export declare function inspectBytes(bytes: ArrayBuffer | ArrayBufferView): FileInfo;

/** The values of a tensor as numbers; the same array if it has float32. */
export declare function toFloat32(tensor: Pick<Tensor, "dtype" | "data">): Float32Array;

/** What a worker of your own runs: it answers each message with the tensors of one file. */
export declare function serve(port: unknown): void;

/** The file does not hold what it should. */
export declare class FormatError extends Error {
  problem: string;
  /** The part of the file: `prefix`, `header`, `tensor 'NAME'`, ... */
  section: string | null;
  /** In bytes. */
  offset: number | null;
}

/** An option cannot be used: an unknown name, a file without names and no `layout`, or one of differences and no `base`. */
export declare class ConfigError extends Error {}

/** The file does not fit the `layout` or the `base`. */
export declare class ModelError extends Error {}
