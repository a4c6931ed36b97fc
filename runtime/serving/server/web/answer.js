// Collects one answer from the chunks of its stream, in the forms of chat completions and of completions.

const MIN_SECONDS = 0.1; // No speed is computed of tokens that came at once.

export class Answer {
  content = "";
  reasoning = "";
  calls = []; // of tools: {id, type, function: {name, arguments}}
  finish = null; // the finish reason, or "stopped" when the user stopped the answer
  usage = null;
  #begun = performance.now();
  #first = null;
  #last = null;

  // Adds a chunk. An answer has one choice; what other choices say is left out.
  add(chunk) {
    this.usage = chunk.usage ?? this.usage;
    const choice = chunk.choices?.find(({ index }) => index === 0);
    if (choice === undefined) return;
    this.finish = choice.finish_reason ?? this.finish;
    const delta = choice.delta ?? { content: choice.text };
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? ""; // A server may send both names, with one text.
    const content = delta.content ?? "";
    for (const part of delta.tool_calls ?? []) this.#addCall(part);
    if (reasoning || content || delta.tool_calls?.length) {
      this.#last = performance.now();
      this.#first ??= this.#last;
    }
    this.reasoning += reasoning;
    this.content += content;
  }

  #addCall(part) {
    const call = (this.calls[part.index ?? this.calls.length] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    call.id = part.id ?? call.id;
    call.function.name += part.function?.name ?? "";
    call.function.arguments += part.function?.arguments ?? "";
  }

  get empty() {
    return !(this.content || this.reasoning || this.calls.length);
  }

  // Returns the answer as a message of the API. Calls of an answer that did not end by itself are left out, for they may be
  // incomplete: nobody could give their results.
  message() {
    const message = { role: "assistant", content: this.content };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    const calls = this.calls.filter(Boolean);
    if (calls.length && ["tool_calls", "stop"].includes(this.finish)) message.tool_calls = calls;
    return message;
  }

  // Returns what this browser measured of the answer, as a text.
  figures() {
    const parts = [];
    if (this.#first !== null) parts.push(`first token after ${Math.round(this.#first - this.#begun)} ms`);
    const tokens = this.usage?.completion_tokens;
    if (tokens !== undefined) {
      parts.push(`${tokens} token${tokens === 1 ? "" : "s"}`);
      const seconds = (this.#last - this.#first) / 1000;
      if (tokens > 1 && seconds > MIN_SECONDS) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
    }
    const ends = { length: "ended by its length", stopped: "stopped by you", timeout: "ended by the server's time limit" };
    if (this.finish in ends) parts.push(ends[this.finish]);
    return parts.join(", ");
  }
}
