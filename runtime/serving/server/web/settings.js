// Reads the settings of requests from the panel: sampling, the system message, tools and other fields.

import { find, make } from "./dom.js";

// Each control: the field of the API, its label, and the bounds and step of its numbers.
const CONTROLS = [
  ["temperature", "Temperature", { min: "0", max: "100", step: "any" }],
  ["top_p", "Top p", { min: "0", max: "1", step: "any" }],
  ["top_k", "Top k", { min: "-1", step: "1" }],
  ["min_p", "Min p", { min: "0", max: "1", step: "any" }],
  ["max_tokens", "Max tokens", { min: "1", step: "1" }],
  ["seed", "Seed", { step: "1" }],
];

export function makeControls() {
  for (const [name, label, bounds] of CONTROLS) {
    const input = make("input", { type: "number", id: name, placeholder: "default", "aria-describedby": "defaults-help", ...bounds });
    find("sampling").append(make("label", { class: "control" }, label, input));
  }
}

function readJson(id, holds, must) {
  const text = find(id).value.trim();
  const fault = find(`${id}-fault`);
  fault.hidden = true;
  if (text === "") return null;
  try {
    const value = JSON.parse(text);
    if (!holds(value)) throw new Error(must);
    return value;
  } catch (error) {
    fault.textContent = error.message;
    fault.hidden = false;
    find(id).closest("details").open = true;
    throw new Error(`${find(id).labels[0].textContent}: ${error.message}`);
  }
}

// Returns the fields of a request but for its messages or prompt, or throws an Error that names the wrong setting.
export function readSettings(mode) {
  const fields = {};
  for (const [name, label] of CONTROLS) {
    const input = find(name);
    if (!input.validity.valid) throw new Error(`${label}: ${input.validationMessage}`);
    if (input.value !== "") fields[name] = Number(input.value);
  }
  if (mode === "chat" && "max_tokens" in fields) {
    fields.max_completion_tokens = fields.max_tokens;
    delete fields.max_tokens;
  }
  const tools = readJson("tools", Array.isArray, "must be a list, like [{...}]");
  if (mode === "chat" && tools?.length) {
    fields.tools = tools;
    if (find("tool_choice").value !== "") fields.tool_choice = find("tool_choice").value;
  }
  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  return { ...fields, ...(readJson("other", isObject, "must be an object, like {...}") ?? {}) };
}
