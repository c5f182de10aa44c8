/** The size of a retry budget. */
export interface BudgetSize {
  /** The most retries that can be saved up. */
  reserve: number;
  /** The retries that each call earns: 0.1 means that retries are at most 10 % of calls. */
  ratio: number;
  /** The retries at the start. The default is `reserve`. */
  initial?: number;
}

/** A token bucket for retries. All calls of a client share it. */
export class Budget {
  #tokens: number;
  readonly #size: BudgetSize;

  constructor(size: BudgetSize) {
    this.#size = size;
    this.#tokens = size.initial ?? size.reserve;
  }

  /** Counts a call. */
  earn(): void {
    this.#tokens = Math.min(this.#size.reserve, this.#tokens + this.#size.ratio);
  }

  /** Takes one retry. Returns false if none is left. */
  spend(): boolean {
    // Sums of 0.1 are a little less than a whole number.
    if (this.#tokens < 1 - 1e-9) return false;
    this.#tokens -= 1;
    return true;
  }
}
