// Shows the live figures of the chosen model: it reads /metrics every second while the page is visible.

import { request } from "./api.js";
import { draw, find, make } from "./dom.js";
import { between, observed, parseMetrics, readModel, restarted, share } from "./metrics.js";

const PERIOD = 1000; // milliseconds
const PERIOD_AFTER_FAULT = 5000; // milliseconds
const TIMEOUT = 5000; // milliseconds
const KEPT = 60; // readings; latencies and shares are of the time since the oldest
const TABLE_ROWS = 10;

const percent = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;
const duration = (seconds) => (seconds < 1 ? `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(2)} s`);
const latency = (seen) =>
  seen && [duration(seen.mean), seen.p95 === Infinity ? "" : `95 % within ${duration(seen.p95)}`];

// Each figure: its name, what it means, its present value as [text, remark] or null, and the number of its line.
const FIGURES = [
  ["Tokens/s", "Tokens generated in the last second.", ({ last }) => last && [last.rate.toFixed(last.rate < 10 ? 1 : 0), ""], ({ last }) => last?.rate ?? 0],
  ["TTFT", "Mean time to the first token, of requests that ended in the last minute.", ({ ttft }) => latency(ttft), ({ ttft }) => ttft?.mean ?? 0],
  ["ITL", "Mean time between two tokens, of requests that ended in the last minute.", ({ itl }) => latency(itl), ({ itl }) => itl?.mean ?? 0],
  ["Batch", "Completions that run.", ({ now }) => [String(now.running), ""], ({ now }) => now.running],
  ["Queue", "Requests that wait for their first step.", ({ now }) => [String(now.waiting), ""], ({ now }) => now.waiting],
  ["KV use", "Share of the KV blocks that requests use.", ({ now }) => [percent(now.kvUse), ""], ({ now }) => now.kvUse],
  ["Prefix hits", "Share of the prompts' tokens that the prefix cache had, in the last minute.", ({ hits }) => hits !== null && [percent(hits), ""], ({ hits }) => hits ?? 0],
  ["Acceptance", "Share of the proposed tokens that were right, in the last minute.", ({ accepted }) => accepted !== null && [percent(accepted), ""], ({ accepted }) => accepted ?? 0],
];

export class LiveFigures {
  #model;
  #readings = [];
  #seconds = []; // what happened between each two readings
  #lines = FIGURES.map(() => []);
  #cells;
  #timer = null;
  #reading = false;

  // model: returns the name of the chosen model.
  constructor(model) {
    this.#model = model;
    this.#cells = FIGURES.map(([name, meaning]) => {
      const cell = {
        value: make("span", { class: "value" }, "–"),
        remark: make("span", { class: "muted remark" }),
        line: draw("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }),
      };
      cell.line.append(draw("polyline"));
      find("figures").append(make("div", { title: meaning }, make("dt", {}, name), make("dd", {}, cell.value, cell.remark, cell.line)));
      return cell;
    });
    document.addEventListener("visibilitychange", () => this.resume());
  }

  // Begins anew, as after the choice of another model.
  restart() {
    this.#readings = [];
    this.#seconds = [];
    this.#lines = FIGURES.map(() => []);
    this.resume();
  }

  // Reads on if the page is visible, and pauses otherwise. Without a model, as before a key is given, there is nothing to read.
  resume() {
    clearTimeout(this.#timer);
    if (this.#model() === "") return;
    if (document.visibilityState !== "visible") {
      this.#readings = []; // Rates over the pause would mix with those of single seconds.
      find("live-state").textContent = "Paused while this tab is hidden.";
    } else if (!this.#reading) void this.#read();
  }

  async #read() {
    this.#reading = true;
    let wait = PERIOD;
    try {
      const response = await request("metrics", { ask: false, signal: AbortSignal.timeout(TIMEOUT) });
      const now = readModel(parseMetrics(await response.text()), this.#model(), performance.now() / 1000);
      if (document.visibilityState !== "visible") return; // The page says already that it pauses.
      find("live-state").textContent = now.up ? "" : "The engine does not run.";
      this.#add(now);
      this.#show();
    } catch (error) {
      this.#readings = [];
      find("live-state").textContent = `No figures: ${error.message}`;
      wait = PERIOD_AFTER_FAULT;
    } finally {
      this.#reading = false;
    }
    if (document.visibilityState === "visible") this.#timer = setTimeout(() => this.#read(), wait);
  }

  #add(now) {
    const before = this.#readings.at(-1);
    if (before !== undefined && restarted(before, now)) this.#readings = [];
    else if (before !== undefined) this.#seconds.push({ ...between(before, now), clock: new Date() });
    this.#readings.push(now);
    this.#readings.splice(0, this.#readings.length - KEPT - 1);
    this.#seconds.splice(0, this.#seconds.length - KEPT);
  }

  #show() {
    const [oldest, now] = [this.#readings[0], this.#readings.at(-1)];
    const facts = {
      now,
      last: this.#readings.length > 1 ? this.#seconds.at(-1) : null,
      ttft: observed(oldest.ttft, now.ttft),
      itl: observed(oldest.itl, now.itl),
      hits: share(oldest, now, "found", "lookedUp"),
      accepted: share(oldest, now, "accepted", "drafted"),
    };
    FIGURES.forEach(([, , describe, number], index) => {
      const [value, remark] = describe(facts) || ["–", ""];
      this.#cells[index].value.textContent = value;
      this.#cells[index].remark.textContent = remark;
      const line = this.#lines[index];
      line.push(number(facts));
      line.splice(0, line.length - KEPT);
      drawLine(this.#cells[index].line.firstElementChild, line);
    });
    this.#showSteps();
  }

  #showSteps() {
    const most = Math.max(1, ...this.#seconds.map(({ prompt, generated }) => prompt + generated));
    const width = 240 / KEPT;
    const bars = this.#seconds.flatMap(({ prompt, generated }, index) => {
      const x = 240 - (this.#seconds.length - index) * width;
      const [low, high] = [(60 * generated) / most, (60 * prompt) / most];
      return [
        draw("rect", { class: "decode", x, width: width - 0.6, y: 64 - low, height: low }),
        draw("rect", { class: "prompt", x, width: width - 0.6, y: 64 - low - high, height: high }),
      ];
    });
    find("steps").replaceChildren(...bars);
    const last = this.#seconds.at(-1);
    if (last === undefined) return;
    const each = last.stepSeconds === null ? "" : `, one each ${duration(last.stepSeconds)}`;
    find("steps-text").textContent = `Last second: ${last.steps} steps${each}. Highest bar: ${most} tokens in a second.`;
    if (!find("steps-table").closest("details").open) return;
    const rows = this.#seconds.slice(-TABLE_ROWS).reverse().map((second) => make("tr", {},
      ...[second.clock.toLocaleTimeString(), second.steps, second.stepSeconds === null ? "–" : (1000 * second.stepSeconds).toFixed(1),
        second.prompt, second.generated].map((text) => make("td", {}, String(text)))));
    find("steps-table").replaceChildren(...rows);
  }
}

function drawLine(line, values) {
  const most = Math.max(...values) || 1;
  const points = values.map((value, index) => `${100 - (values.length - 1 - index) * (100 / (KEPT - 1))},${22 - (20 * value) / most}`);
  line.setAttribute("points", points.join(" "));
}
