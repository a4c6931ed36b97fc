// Shows one turn of the conversation: who speaks, thinking, text, calls of tools, and what can be done with it.

import { textOf } from "./conversation.js";
import { copyButton, make } from "./dom.js";
import { GrowingText } from "./markdown.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool result", system: "System", developer: "System" };

// The element of one turn. What it shows may grow while an answer streams.
export class TurnView {
  #text;
  #shownText;
  #thinking;
  #calls;
  #foot;
  #buttons;
  #plain;

  // plain: the text is shown as it is, without markdown, as for completions. open: whether the thinking is unfolded.
  constructor(message, { plain = false, open = false } = {}) {
    this.#plain = plain || message.role !== "assistant";
    this.#text = make("div", { class: this.#plain ? "text plain" : "text" });
    this.#shownText = new GrowingText(this.#text);
    this.#thinking = make("details", { class: "thinking", hidden: "" }, make("summary", {}, "Thinking"), make("div", { class: "plain" }));
    this.#thinking.open = open;
    this.#calls = make("div", { class: "calls" });
    this.#foot = make("p", { class: "muted figures-of-turn", hidden: "" });
    this.#buttons = make("div", { class: "row" });
    this.element = make(
      "li", { class: `turn ${message.role}` },
      make("h3", {}, NAMES[message.role] ?? message.role), this.#thinking, this.#text, this.#calls, this.#foot, this.#buttons,
    );
    this.show(textOf(message), message.reasoning_content ?? message.reasoning ?? "", message.tool_calls ?? []);
  }

  // Shows a turn as it is now; texts may only have grown.
  show(text, reasoning, calls) {
    if (this.#plain) this.#text.textContent = text;
    else this.#shownText.show(text);
    this.#thinking.hidden = reasoning === "";
    this.#thinking.lastElementChild.textContent = reasoning;
    calls.forEach((call, index) => {
      this.#calls.children[index] ?? this.#calls.append(make("div", { class: "call" }, make("p", {}), make("pre", { tabindex: "0" })));
      const [name, given] = this.#calls.children[index].children;
      name.textContent = `Calls ${call.function.name}`;
      given.textContent = call.function.arguments;
    });
  }

  get open() {
    return this.#thinking.open;
  }

  // Shows what was measured, and the error that ended the turn.
  finish(figures = "", fault = "") {
    this.#foot.hidden = figures === "";
    this.#foot.textContent = figures;
    if (fault !== "") this.element.append(make("p", { class: "fault" }, fault));
  }

  // Offers to copy the turn's message, and further actions: {label: function}.
  offer(message, actions = {}) {
    const name = (NAMES[message.role] ?? message.role).toLowerCase();
    this.#buttons.replaceChildren(
      copyButton(`Copy this message of: ${name}`, () => textOf(message) || JSON.stringify(message.tool_calls ?? "")),
      ...Object.entries(actions).map(([label, act]) => make("button", { type: "button", class: "small", click: act }, label)),
    );
  }

  // Asks for the results of a message's calls. send: gets the messages with the results.
  askForResults(calls, send) {
    const areas = calls.map(() => make("textarea", { rows: "2" }));
    const labels = calls.map((call, index) => make("label", {}, `Result of ${call.function.name}`, areas[index]));
    const form = make("form", { class: "results" }, ...labels, make("button", { type: "submit" }, "Send the results"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      send(calls.map((call, index) => ({ role: "tool", tool_call_id: call.id, content: areas[index].value })));
    });
    this.#calls.append(form);
  }
}
