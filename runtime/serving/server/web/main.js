// Joins the parts of the page: sends questions, streams answers into turns, and answers buttons and keys.

import { Answer } from "./answer.js";
import { hasKey, keepKey, onMissingKey, readEvents, request } from "./api.js";
import { Conversation, MAX_FILE, readMessages, textOf } from "./conversation.js";
import { find, make } from "./dom.js";
import { LiveFigures } from "./live.js";
import { makeControls, readSettings } from "./settings.js";
import { TurnView } from "./turns.js";

const THEME = "tensorwright-theme";
const MAX_SAID = 2000; // characters of an answer that a screen reader is told at once
const SLACK = 80; // pixels from the end within which the conversation follows the answer

let conversation = new Conversation();
let cleared = null; // the conversation that the last Clear took away
let stopper = null; // the AbortController of the answer under way
let editing = null; // the index of the question that is edited

const live = new LiveFigures(() => find("model").value);

// Turns on the page.

function show() {
  const turns = conversation.turns;
  for (const turn of turns) turn.open = turn.view?.open ?? turn.open; // What the user unfolded stays so.
  const views = turns.map((turn, index) => showTurn(turn, index));
  find("turns").replaceChildren(...views.map(({ element }) => element));
  find("welcome").hidden = turns.length > 0;
  showButtons();
  follow(true);
}

function showTurn(turn, index) {
  const { message, figures, fault, plain, open } = turn;
  const view = new TurnView(message, { plain, open });
  turn.view = view;
  view.finish(figures, fault);
  view.offer(message, index === conversation.lastQuestion ? { Edit: () => edit(index) } : {});
  const calls = message.tool_calls ?? [];
  if (calls.length && index === conversation.turns.length - 1) {
    view.askForResults(calls, (results) => {
      for (const result of results) conversation.add(result);
      void answer();
    });
  }
  return view;
}

function showButtons() {
  const busy = stopper !== null;
  const some = conversation.turns.length > 0;
  find("send").disabled = busy;
  find("stop").disabled = !busy;
  find("regenerate").disabled = busy || conversation.lastQuestion < 0;
  find("clear").disabled = busy || !(some || cleared);
  find("clear").textContent = !some && cleared ? "Undo clear" : "Clear";
  find("export").disabled = busy || !some;
  find("import").disabled = busy;
  find("editing").hidden = editing === null;
  for (const control of find("turns").querySelectorAll("button:not(.code-head button), .results textarea")) {
    if (control.getAttribute("aria-label") === null) control.disabled = busy;
  }
}

function follow(always = false) {
  const area = find("scroll");
  const near = area.scrollHeight - area.scrollTop - area.clientHeight < SLACK;
  if (always || near) area.scrollTop = area.scrollHeight;
}

// Gives the focus to the conversation if the button that had it is gone or disabled, so that keys still work.
function keepFocus() {
  const focused = document.activeElement;
  if (focused === null || focused === document.body || focused.disabled) find("scroll").focus();
}

function say(text) {
  find("said").textContent = text;
}

// Shows an error below the conversation, with an action if there is one: [label, function].
function complain(text, action) {
  find("notice").replaceChildren(text, ...(action ? [" ", make("button", { type: "button", click: action[1] }, action[0])] : []));
  find("notice").hidden = text === "";
  if (text !== "") {
    say(text);
    follow(true);
  }
}

// Questions and answers.

function bodyOf(mode) {
  const fields = { model: find("model").value, stream: true, stream_options: { include_usage: true }, ...readSettings(mode) };
  if (mode === "chat") return { ...fields, messages: conversation.messages(find("system").value) };
  return { ...fields, prompt: textOf(conversation.turns[conversation.lastQuestion].message) };
}

// Asks for an answer to the conversation as it is, and shows it as it comes.
async function answer() {
  const mode = find("mode").value;
  const plain = mode === "completion";
  complain("");
  show();
  let body;
  try {
    body = bodyOf(mode);
  } catch (error) {
    complain(error.message);
    return;
  }
  stopper = new AbortController();
  const got = new Answer();
  const view = new TurnView({ role: "assistant", content: "" }, { plain });
  view.element.setAttribute("aria-busy", "true");
  find("turns").append(view.element);
  showButtons();
  keepFocus();
  follow(true);
  let fault = null;
  let frame = null;
  const draw = () => {
    frame = null;
    view.show(got.content, got.reasoning, got.calls.filter(Boolean));
    follow();
  };
  try {
    const response = await request(mode === "chat" ? "v1/chat/completions" : "v1/completions", { body, signal: stopper.signal });
    for await (const chunk of readEvents(response)) {
      got.add(chunk);
      frame ??= requestAnimationFrame(draw);
    }
  } catch (error) {
    if (stopper.signal.aborted) got.finish = "stopped";
    else fault = error;
  }
  if (frame !== null) cancelAnimationFrame(frame);
  stopper = null;
  const whole = fault === null && got.finish !== "stopped";
  if (whole || !got.empty) conversation.add(got.message(), { figures: got.figures(), fault: fault?.message ?? "", plain, open: view.open });
  show();
  if (fault !== null) complain(fault.message, suggest(fault));
  else say(whole ? `The answer: ${got.content.slice(0, MAX_SAID) || "it has no text."}` : "The answer was stopped.");
}

// Returns what may help against an error of the server.
function suggest(error) {
  if (!/has no chat template/.test(error.message)) return undefined;
  return ["Use completion mode", () => {
    find("mode").value = "completion";
    showMode();
    void answer();
  }];
}

function send() {
  const text = find("question").value;
  if (stopper !== null || text.trim() === "") return;
  if (editing !== null) conversation.turns.length = editing;
  editing = null;
  cleared = null;
  find("question").value = "";
  conversation.add({ role: "user", content: text }, { plain: true });
  void answer();
}

function edit(index) {
  editing = index;
  find("question").value = textOf(conversation.turns[index].message);
  showButtons();
  find("question").focus();
}

function regenerate() {
  if (stopper !== null || conversation.lastQuestion < 0) return;
  while (conversation.last.message.role === "assistant") conversation.turns.pop();
  void answer();
}

function stop() {
  stopper?.abort();
}

// Clears the conversation. When it is empty, this brings back what was cleared.
function clear() {
  if (conversation.turns.length > 0) {
    cleared = conversation;
    conversation = new Conversation();
  } else {
    conversation = cleared;
    cleared = null;
  }
  editing = null;
  complain("");
  show();
  find("question").focus();
}

function exportConversation() {
  const exported = { model: find("model").value, messages: conversation.messages(find("system").value) };
  const url = URL.createObjectURL(new Blob([JSON.stringify(exported, null, 2)], { type: "application/json" }));
  make("a", { href: url, download: "conversation.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

async function importConversation(file) {
  try {
    if (file.size > MAX_FILE) throw new Error(`the file must have at most ${MAX_FILE} bytes`);
    const messages = readMessages(await file.text());
    const system = ["system", "developer"].includes(messages[0]?.role) ? textOf(messages.shift()) : "";
    conversation = new Conversation();
    for (const message of messages) conversation.add(message);
    find("system").value = system;
    editing = null;
    complain("");
    show();
    say(`The conversation has ${messages.length} messages now.`);
  } catch (error) {
    complain(`Not imported: ${error.message}`);
  }
}

// The server's key and its models.

function askForKey(wrong) {
  const dialog = find("key-dialog");
  find("key-fault").hidden = !wrong;
  find("key").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "given";
      if (given) keepKey(find("key").value.trim());
      find("key").value = "";
      find("forget-key").hidden = !hasKey();
      resolve(given);
      live.resume();
    }, { once: true });
  });
}

async function loadModels() {
  try {
    const { data } = await (await request("v1/models")).json();
    find("model").replaceChildren(...data.map(({ id }) => make("option", { value: id }, id)));
    complain("");
  } catch (error) {
    complain(`No models: ${error.message}`, ["Try again", loadModels]);
  }
  live.restart();
}

// Looks and keys.

function showMode() {
  find("question-label").textContent = find("mode").value === "chat" ? "Your question" : "The text to go on from";
}

function setTheme(theme) {
  if (theme === "") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

function listen() {
  find("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  find("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  find("cancel-edit").addEventListener("click", () => { editing = null; find("question").value = ""; showButtons(); });
  find("stop").addEventListener("click", stop);
  find("regenerate").addEventListener("click", regenerate);
  find("clear").addEventListener("click", clear);
  find("export").addEventListener("click", exportConversation);
  find("import").addEventListener("click", () => find("import-file").click());
  find("import-file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (file !== undefined) await importConversation(file);
    event.target.value = "";
  });
  find("model").addEventListener("change", () => live.restart());
  find("mode").addEventListener("change", showMode);
  find("theme").addEventListener("change", (event) => {
    localStorage.setItem(THEME, event.target.value);
    setTheme(event.target.value);
  });
  find("panel-switch").addEventListener("click", (event) => {
    const open = document.body.classList.toggle("with-panel");
    event.target.setAttribute("aria-expanded", String(open));
  });
  find("key-form").addEventListener("submit", () => { find("key-dialog").returnValue = "given"; });
  find("key-cancel").addEventListener("click", () => find("key-dialog").close(""));
  find("forget-key").addEventListener("click", () => { keepKey(null); find("forget-key").hidden = true; void loadModels(); });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && stopper !== null && !find("key-dialog").open) stop();
    if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      find("question").focus();
    }
  });
}

makeControls();
onMissingKey(askForKey);
listen();
find("theme").value = localStorage.getItem(THEME) ?? "";
setTheme(find("theme").value);
find("forget-key").hidden = !hasKey();
showMode();
show();
find("question").focus();
void loadModels();
