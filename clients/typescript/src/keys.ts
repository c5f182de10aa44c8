import type { Clock } from "./clock.js";
import { systemClock } from "./clock.js";
import { InvalidKey } from "./errors.js";
import { hmac, sha256 } from "./sha256.js";

/** One action of a user. Its key is the same in every attempt. */
export interface Intent {
  readonly key: string;
}

/** Makes an intent with a new key (UUIDv7). Call it when the user acts, not when a request is sent. */
export function newIntent(clock: Clock = systemClock): Intent {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  let time = clock.now();
  for (let i = 5; i >= 0; i--) {
    bytes[i] = time % 256;
    time = Math.floor(time / 256);
  }
  return { key: uuid(bytes, 0x70) };
}

/**
 * Makes an intent from business ids. The same ids always give the same key, on every device.
 *
 * **Warning:** include everything that makes the action another one, such as a number that counts
 * the user's tries. A second action with the same ids is answered with the outcome of the first.
 */
export function intentFrom(...parts: [string, ...string[]]): Intent {
  return { key: uuid(sha256(framed("onetake intent v1", parts)), 0x80) };
}

/** Makes an intent from a key that was stored. Throws {@link InvalidKey} if it cannot be sent. */
export function intentWithKey(key: string): Intent {
  if (typeof key !== "string") throw new InvalidKey("a key must be a string");
  if (key.length < 16 || key.length > 255) {
    throw new InvalidKey(`a key has 16 to 255 characters, this one has ${key.length}`);
  }
  if (!/^[!-~]+$/.test(key)) {
    throw new InvalidKey("a key consists of visible ASCII characters, without spaces");
  }
  if (key.includes('"') || key.includes("\\")) {
    throw new InvalidKey("a key must not contain quotes or backslashes");
  }
  return { key };
}

/** Returns the key for one of the calls that an operation makes under its derived key. */
export function stepKey(derivedKey: string, name: string): string {
  return uuid(hmac(uuidBytes(derivedKey), framed("onetake step v1", [name])), 0x40);
}

/** Returns the key for the call that undoes the call under `key`. */
export function compensationKey(key: string): string {
  return uuid(hmac(uuidBytes(key), framed("onetake compensation v1", [])), 0x40);
}

/** A label, and each part after its length in eight bytes. */
function framed(label: string, parts: string[]): Uint8Array {
  const encoder = new TextEncoder();
  const pieces = [encoder.encode(label)];
  for (const part of parts) {
    const bytes = encoder.encode(part);
    const length = new Uint8Array(8);
    new DataView(length.buffer).setUint32(4, bytes.length);
    pieces.push(length, bytes);
  }
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

function uuid(bytes: Uint8Array, version: number): string {
  const hex = Array.from(bytes.subarray(0, 16), (byte, i) => {
    const marked = i === 6 ? (byte & 0x0f) | version : i === 8 ? (byte & 0x3f) | 0x80 : byte;
    return marked.toString(16).padStart(2, "0");
  }).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

function uuidBytes(text: string): Uint8Array {
  if (!/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text)) {
    throw new InvalidKey("a derived key is a UUID, such as 6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90");
  }
  const hex = text.replaceAll("-", "");
  return Uint8Array.from({ length: 16 }, (_, i) => parseInt(hex.slice(i * 2, i * 2 + 2), 16));
}
