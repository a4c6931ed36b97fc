// Makes elements of the page. Texts become text nodes, so nothing that a model writes is read as HTML.

export function find(id) {
  return document.getElementById(id);
}

// Returns a new element. Properties are set as attributes, but functions become listeners of the event of their name.
// Children are elements and texts.
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Returns a new element of SVG with attributes.
export function draw(tag, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Copies a text. Browsers offer the clipboard only over https and on this machine; elsewhere the old command does it.
export async function copyText(text) {
  if (navigator.clipboard !== undefined) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = make("textarea", { class: "unseen" });
  area.value = text;
  const before = document.activeElement;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  before?.focus();
  if (!copied) throw new Error("the browser does not let this page copy");
}

// Returns a button that copies what `text` returns, and says for a moment what came of it.
export function copyButton(label, text) {
  const button = make("button", { type: "button", class: "small", "aria-label": label }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await copyText(text());
      button.textContent = "Copied";
    } catch (error) {
      button.textContent = "Not copied";
      button.title = String(error.message);
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return button;
}
