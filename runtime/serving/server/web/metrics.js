// Reads the server's metrics, which come as Prometheus' text, and computes rates from two readings.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const PREFIX = "tensorwright_";

// Returns all samples by name: {labels, value}.
export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (match === null || !match[1].startsWith(PREFIX)) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) labels[name] = value.replace(/\\(.)/g, "$1");
    const name = match[1].slice(PREFIX.length);
    if (!samples.has(name)) samples.set(name, []);
    samples.get(name).push({ labels, value: Number(match[3]) });
  }
  return samples;
}

// Returns what the page shows of one model at one time. time: in seconds.
export function readModel(samples, model, time) {
  const of = (name) => (samples.get(name) ?? []).filter(({ labels }) => labels.model === model);
  const sum = (name) => of(name).reduce((total, { value }) => total + value, 0);
  const histogram = (name) => ({
    sum: sum(`${name}_sum`),
    count: sum(`${name}_count`),
    buckets: of(`${name}_bucket`).map(({ labels, value }) => [labels.le === "+Inf" ? Infinity : Number(labels.le), value]),
  });
  return {
    time,
    up: sum("engine_up"),
    steps: sum("steps_total"),
    prompt: sum("prefill_tokens_total"),
    generated: sum("generated_tokens_total"),
    running: sum("requests_running"),
    waiting: sum("requests_waiting"),
    kvUse: Math.max(0, ...of("kv_usage_ratio").map(({ value }) => value)),
    lookedUp: sum("prefix_lookup_tokens_total"),
    found: sum("prefix_hit_tokens_total"),
    drafted: sum("draft_tokens_total"),
    accepted: sum("draft_tokens_accepted_total"),
    ttft: histogram("time_to_first_token_seconds"),
    itl: histogram("inter_token_seconds"),
  };
}

// Whether a counter fell between two readings, as when the server started anew.
export function restarted(before, now) {
  return now.steps < before.steps || now.generated < before.generated || now.ttft.count < before.ttft.count;
}

// Returns what happened between two readings of one second or so.
export function between(before, now) {
  const seconds = now.time - before.time;
  const steps = now.steps - before.steps;
  return {
    time: now.time,
    seconds,
    steps,
    prompt: now.prompt - before.prompt,
    generated: now.generated - before.generated,
    rate: (now.generated - before.generated) / seconds,
    stepSeconds: steps > 0 ? seconds / steps : null,
  };
}

// Returns a part of a whole from two counters, as what came since `before`; null if nothing came.
export function share(before, now, part, whole) {
  const all = now[whole] - before[whole];
  return all > 0 ? (now[part] - before[part]) / all : null;
}

// Returns the mean of what a histogram observed since `before`, and the bound under which 95 % of it is; null if nothing was.
export function observed(before, now) {
  const count = now.count - before.count;
  if (count <= 0) return null;
  const earlier = new Map(before.buckets);
  const bound = now.buckets.find(([limit, value]) => value - (earlier.get(limit) ?? 0) >= 0.95 * count);
  return { mean: (now.sum - before.sum) / count, p95: bound?.[0] ?? Infinity, count };
}
