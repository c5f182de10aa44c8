/** For the service behind the gateway: what the gateway says, and what the service answers. */
import { compensationKey, stepKey } from "./keys.js";

/** The service's own word about an attempt: see `Onetake-Outcome` in the gateway's documentation. */
export type Outcome = "record" | "release" | "unknown";

/** What the gateway says about the attempt that a request belongs to. */
export class OperationContext {
  /** The client's key. */
  readonly key: string | undefined;
  /** A number that is higher for every later attempt. A service can refuse lower ones. */
  readonly fence: bigint | undefined;
  /** The key for the service's own calls. It is the same in every attempt. */
  readonly derivedKey: string | undefined;

  constructor(headers: Record<string, string | string[] | undefined>) {
    const one = (name: string) => {
      const value = headers[name];
      return typeof value === "string" ? value : undefined;
    };
    const fence = one("idempotency-fence");
    this.key = one("idempotency-key");
    this.fence = fence !== undefined && /^\d{1,20}$/.test(fence) ? BigInt(fence) : undefined;
    this.derivedKey = one("idempotency-derived-key");
  }

  /** Returns the key for one of several calls. The name must be the same in every attempt. */
  stepKey(name: string): string {
    return stepKey(this.#derived(), name);
  }

  /** Returns the key for the call that undoes a step. */
  compensationKey(name: string): string {
    return compensationKey(this.stepKey(name));
  }

  #derived(): string {
    if (this.derivedKey === undefined) {
      throw new Error("the request has no Idempotency-Derived-Key: it did not pass the gateway");
    }
    return this.derivedKey;
  }
}

/** What became of an operation, as the service knows it. */
export type Reconciled =
  | { outcome: "record"; status: number; body?: unknown; headers?: Record<string, string> }
  | { outcome: "release" }
  | { outcome: "unknown" };

/** Finds out what became of an operation. `release` means for certain that it had no effect. */
export type Reconcile = (derivedKey: string) => Reconciled | Promise<Reconciled>;

interface ExpressRequest {
  headers: Record<string, string | string[] | undefined>;
  params: Record<string, string | string[] | undefined>;
  onetake?: OperationContext;
}

interface ExpressResponse {
  setHeader(name: string, value: string): unknown;
  statusCode: number;
  end(body?: string): unknown;
  outcome?: (outcome: Outcome) => void;
}

/** Middleware for Express: sets `req.onetake`, and `res.outcome(…)` which sets `Onetake-Outcome`. */
export function expressOnetake() {
  return (request: object, response: object, next: () => void): void => {
    const [req, res] = [request as ExpressRequest, response as ExpressResponse];
    req.onetake = new OperationContext(req.headers);
    res.outcome = (outcome) => void res.setHeader("Onetake-Outcome", outcome);
    next();
  };
}

/** A handler for Express: `app.get("/reconcile/:derivedKey", expressReconcile(find))`. */
export function expressReconcile(reconcile: Reconcile) {
  return async (request: object, response: object): Promise<void> => {
    const [req, res] = [request as ExpressRequest, response as ExpressResponse];
    const answer = await reconciled(reconcile, req.params["derivedKey"]);
    res.statusCode = answer.status;
    for (const [name, value] of Object.entries(answer.headers)) res.setHeader(name, value);
    res.end(answer.body);
  };
}

interface FastifyLike {
  decorateRequest(name: string, value: null): unknown;
  addHook(name: "onRequest", hook: (request: never, reply: never) => Promise<void>): unknown;
  get(path: string, handler: (request: never, reply: never) => unknown): unknown;
}

interface FastifyRequest {
  headers: Record<string, string | string[] | undefined>;
  params: unknown;
  onetake: OperationContext | null;
}

interface FastifyReply {
  header(name: string, value: string): FastifyReply;
  code(status: number): FastifyReply;
  send(body: string): unknown;
}

/** Adds `request.onetake` to a Fastify app, and the route `path` if `reconcile` is given. */
export function fastifyOnetake(
  app: object,
  options: { path: string; reconcile: Reconcile } | Record<string, never> = {},
): void {
  const fastify = app as FastifyLike;
  fastify.decorateRequest("onetake", null);
  fastify.addHook("onRequest", (request: FastifyRequest) => {
    request.onetake = new OperationContext(request.headers);
    return Promise.resolve();
  });
  const { path, reconcile } = options;
  if (path === undefined || reconcile === undefined) return;
  fastify.get(path, async (request: FastifyRequest, reply: FastifyReply) => {
    const params = request.params as Record<string, string | undefined>;
    const answer = await reconciled(reconcile, params["derivedKey"]);
    for (const [name, value] of Object.entries(answer.headers)) reply.header(name, value);
    return reply.code(answer.status).send(answer.body);
  });
}

/** Sets `Onetake-Outcome` of a Fastify reply. */
export function setOutcome(reply: object, outcome: Outcome): void {
  (reply as FastifyReply).header("Onetake-Outcome", outcome);
}

interface ReconcileAnswer {
  status: number;
  headers: Record<string, string>;
  body: string;
}

/** The answer to the gateway's question. A function that fails does not know the outcome. */
async function reconciled(
  reconcile: Reconcile,
  derivedKey: string | string[] | undefined,
): Promise<ReconcileAnswer> {
  let found: Reconciled = { outcome: "unknown" };
  try {
    if (typeof derivedKey === "string") found = await reconcile(derivedKey);
  } catch {
    // The outcome is unknown, and the gateway asks again.
  }
  if (found.outcome !== "record") {
    const status = found.outcome === "release" ? 404 : 503;
    return { status, headers: { "Onetake-Outcome": found.outcome }, body: "" };
  }
  const headers = {
    "Content-Type": "application/json",
    ...found.headers,
    "Onetake-Outcome": "record",
    "Onetake-Status": String(found.status),
  };
  const body = typeof found.body === "string" ? found.body : (JSON.stringify(found.body) ?? "");
  return { status: 200, headers, body };
}
