import { readFileSync } from "node:fs";

/** The settings of a scenario: see clients/conformance/README.md. */
export interface Settings {
  deadline_ms: number;
  attempt_timeout_ms: number;
  attempts_max: number;
  backoff_base_ms: number;
  backoff_max_ms: number;
  budget: { reserve: number; ratio: number; initial?: number };
  random: number[];
  calls: number;
  through: "send" | "queue";
  wall_clock?: string;
  key?: string;
  kill_after_requests?: number;
}

/** What the caller sees of one call. */
export type Seen = Record<string, unknown> & { kind: string };

export interface Scenario {
  name: string;
  settings: Settings;
  expect: {
    requests: number;
    keys: (string | null)[];
    methods?: string[];
    delays_ms?: number[];
    timeouts_ms?: number[];
    results: Seen[];
  };
}

interface Report {
  requests: { method: string; key: string | null; timeout_ms: number | null; body: string }[];
  steps_left: number;
}

export function readScenarios(path: string): Scenario[] {
  const document = JSON.parse(readFileSync(path, "utf8")) as {
    defaults: Settings;
    scenarios: (Scenario & { client?: Partial<Settings> })[];
  };
  return document.scenarios.map((scenario) => ({
    ...scenario,
    settings: { ...document.defaults, ...scenario.client },
  }));
}

/** One run of a scenario on the server. */
export class Run {
  private constructor(
    readonly url: string,
    readonly report_url: string,
  ) {}

  static async start(server: string, scenario: string): Promise<Run> {
    const answer = await fetch(`${server}/-/runs/${scenario}`, { method: "POST" });
    if (!answer.ok) throw new Error(`the server does not know ${scenario}`);
    const { run, path } = (await answer.json()) as { run: number; path: string };
    return new Run(server + path, `${server}/-/runs/${run}`);
  }

  async report(): Promise<Report> {
    return (await (await fetch(this.report_url)).json()) as Report;
  }
}

/** Returns the differences between what is expected and what happened. */
export function differences(
  { expect }: Scenario,
  report: Report,
  delays: number[] | undefined,
  results: Seen[],
): string[] {
  const found: string[] = [];
  const compare = (what: string, expected: unknown, actual: unknown) => {
    const [left, right] = [JSON.stringify(expected), JSON.stringify(actual)];
    if (left !== right) found.push(`${what}: expected ${left}, got ${right}`);
  };
  compare("requests", expect.requests, report.requests.length);
  compare("keys", expect.keys, named(report.requests.map((request) => request.key)));
  if (expect.methods) {
    compare(
      "methods",
      expect.methods,
      report.requests.map((request) => request.method),
    );
  }
  if (expect.delays_ms && delays) compare("delays", expect.delays_ms, delays);
  if (expect.timeouts_ms) {
    compare(
      "timeouts",
      expect.timeouts_ms,
      report.requests.map((request) => request.timeout_ms),
    );
  }
  compare("number of results", expect.results.length, results.length);
  expect.results.forEach((expected, i) => {
    const actual = Object.fromEntries(
      Object.keys(expected).map((name) => [name, results[i]?.[name]]),
    );
    compare(`result ${i + 1}`, expected, actual);
  });
  return found;
}

/** Replaces each key that a client made by a letter. */
function named(keys: (string | null)[]): (string | null)[] {
  const letters = new Map<string, string>();
  return keys.map((key) => {
    if (key === null || !/^[0-9a-f-]{36}$/.test(key)) return key;
    if (!letters.has(key)) letters.set(key, String.fromCharCode(97 + letters.size));
    return letters.get(key) ?? null;
  });
}
