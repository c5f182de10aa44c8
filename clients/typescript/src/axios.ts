/** An adapter for axios. */
import type { AxiosAdapter, AxiosResponse, InternalAxiosRequestConfig } from "axios";

import type { Onetake } from "./client.js";
import { parsed } from "./client.js";
import { BodyNotReplayable, CallError, Refused } from "./errors.js";
import { intentWithKey } from "./keys.js";
import type { Attempt } from "./retry.js";
import { Call } from "./retry.js";
import type { Answer } from "./verdict.js";

/**
 * Wraps an adapter of axios: `api.defaults.adapter = onetakeAdapter(client, axios.getAdapter("http"))`.
 *
 * POST, PUT, PATCH and DELETE get a key and are retried. A refusal is what it was before: an
 * `AxiosError` or a response, as `validateStatus` says. Other errors are a `CallError`.
 */
export function onetakeAdapter(client: Onetake, inner: AxiosAdapter): AxiosAdapter {
  return async (config) => {
    const method = (config.method ?? "get").toLowerCase();
    if (!["post", "put", "patch", "delete"].includes(method)) return inner(config);
    if (isStream(config.data)) throw new BodyNotReplayable();
    const stored: unknown = config.headers.get("Idempotency-Key");
    const { key } = typeof stored === "string" ? intentWithKey(stored) : client.intent();
    const exchange = (attempt: Attempt) => send(inner, config, attempt);
    const signal = config.signal as AbortSignal | undefined;
    // The timeout of axios is the deadline of the whole call here.
    const context = client.within(config.timeout || undefined);
    try {
      return (await new Call(context, exchange, key, signal).run()).answer.response;
    } catch (error) {
      if (!(error instanceof CallError) || !(error.response instanceof AxiosAnswer)) throw error;
      const { response, rejection } = error.response;
      if (error instanceof Refused) {
        if (rejection) throw rejection;
        return response;
      }
      Object.defineProperty(error, "response", { value: response });
      throw error;
    }
  };
}

async function send(
  inner: AxiosAdapter,
  config: InternalAxiosRequestConfig,
  attempt: Attempt,
): Promise<AxiosAnswer> {
  const headers = config.headers.concat(attempt.headers);
  // The deadline is kept by the call, and its signal ends an attempt.
  const request = { ...config, headers, signal: attempt.signal, timeout: 0 };
  if (attempt.poll !== undefined) {
    const page = (globalThis.location as Location | undefined)?.href ?? "http://localhost";
    const operation = new URL(config.url ?? "", new URL(config.baseURL ?? "", page));
    const handle = new URL(attempt.poll, operation);
    if (handle.origin !== operation.origin) throw new TypeError("the handle is elsewhere");
    headers.delete("Idempotency-Key");
    headers.delete("Content-Type");
    Object.assign(request, { method: "get", url: handle.href, data: undefined });
    delete request.params;
  }
  try {
    return await answerOf(await inner(request));
  } catch (error) {
    const response = (error as { response?: AxiosResponse } | null)?.response;
    // A response that broke off has an error, too. Only a status that is not accepted is an answer.
    if (!response || (config.validateStatus?.(response.status) ?? true)) throw error;
    return answerOf(response, error);
  }
}

/** An answer of axios. `rejection` is the error that axios made of it. */
class AxiosAnswer implements Answer {
  readonly status: number;

  constructor(
    readonly response: AxiosResponse,
    readonly json: unknown,
    readonly rejection?: unknown,
  ) {
    this.status = response.status;
  }

  header(name: string): string | null {
    const value: unknown = (this.response.headers as Record<string, unknown>)[name];
    return typeof value === "string" ? value : null;
  }
}

async function answerOf(response: AxiosResponse, rejection?: unknown): Promise<AxiosAnswer> {
  const data: unknown = response.data;
  const type: unknown = (response.headers as Record<string, unknown>)["content-type"];
  let text = "";
  if (typeof data === "string") text = data;
  else if (data instanceof Blob) text = await data.text();
  else if (data instanceof ArrayBuffer || ArrayBuffer.isView(data)) {
    text = new TextDecoder().decode(data);
  }
  const json = parsed(typeof type === "string" ? type : null, () => text);
  return new AxiosAnswer(response, json, rejection);
}

function isStream(data: unknown): boolean {
  if (typeof data !== "object" || data === null || ArrayBuffer.isView(data)) return false;
  if (typeof FormData !== "undefined" && data instanceof FormData) return false;
  return "pipe" in data || Symbol.asyncIterator in data;
}
