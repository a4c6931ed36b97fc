// Shows a model's text as paragraphs, headings, lists and code blocks. Each part becomes an element with text nodes, so
// the text cannot run anything. Links, images and HTML stay the text that they are.

import { copyButton, make } from "./dom.js";

// No match goes back over what it has read, so the time is linear in a line: with s nothing stops (.*) before the end.
const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*)$/s;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/s;
const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*/g;

// Cuts a text from the offset `start` into blocks. A block has its kind, its lines, and the offset of its first character.
export function cutBlocks(text, start = 0) {
  const blocks = [];
  let open = null; // the block that the next line may belong to
  let fence = null; // the mark that ends the present code block
  let offset = start;
  const begin = (kind, more = {}) => {
    open = { kind, lines: [], start: offset, ...more };
    blocks.push(open);
  };
  for (const line of text.slice(start).split("\n")) {
    if (fence !== null) {
      if (line.trim().startsWith(fence) && line.trim() === fence[0].repeat(line.trim().length)) {
        fence = null;
        open = null;
      } else open.lines.push(line);
    } else {
      const mark = FENCE.exec(line);
      const heading = HEADING.exec(line);
      if (mark && !line.includes("`", mark[0].length)) {
        begin("code", { language: mark[2] });
        fence = mark[1];
      } else if (heading) {
        begin("heading", { level: heading[1].length });
        open.lines.push(heading[2]);
        open = null;
      } else if (line.trim() === "") {
        if (open?.kind !== "list") open = null;
        else open.pause = true;
      } else if (ITEM.test(line)) {
        const numbered = ITEM.exec(line)[2] !== undefined;
        if (open?.kind !== "list" || (open.numbered !== numbered && !/^\s/.test(line))) begin("list", { numbered });
        open.pause = false;
        open.lines.push(line);
      } else if (open?.kind === "list" && (!open.pause || /^\s/.test(line))) {
        open.lines[open.lines.length - 1] += `\n${line.trim()}`;
      } else {
        if (open?.kind !== "paragraph") begin("paragraph");
        open.lines.push(line);
      }
    }
    offset += line.length + 1;
  }
  return blocks;
}

// Appends a text to an element, with code, bold and emphasis of one line.
function addInline(element, text) {
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    element.append(text.slice(end, match.index));
    const [whole, code, bold, emphasis] = match;
    if (code !== undefined) element.append(make("code", {}, code));
    else if (bold !== undefined) element.append(make("strong", {}, bold));
    else element.append(make("em", {}, emphasis));
    end = match.index + whole.length;
  }
  element.append(text.slice(end));
  return element;
}

function showList(block) {
  const root = make(block.numbered ? "ol" : "ul");
  const levels = [{ indent: -1, list: root }];
  for (const line of block.lines) {
    const [, space, number, text] = ITEM.exec(line.split("\n", 1)[0]);
    const indent = space.length;
    while (levels.length > 1 && indent < levels.at(-1).indent) levels.pop();
    if (levels[0].indent < 0 || (levels.length === 1 && indent < levels[0].indent)) levels[0].indent = indent;
    const last = levels.at(-1).list.lastElementChild;
    if (indent > levels.at(-1).indent + 1 && last !== null && levels.length < 6) {
      const list = make(number === undefined ? "ul" : "ol");
      last.append(list);
      levels.push({ indent, list });
    }
    const list = levels.at(-1).list;
    if (list.tagName === "OL" && list.childElementCount === 0 && number !== undefined) list.start = Number(number);
    list.append(addInline(make("li"), text + line.slice(line.split("\n", 1)[0].length)));
  }
  return root;
}

function showBlock(block) {
  const text = block.lines.join("\n");
  if (block.kind === "code") {
    const name = block.language || "code";
    const head = make("div", { class: "code-head" }, make("span", {}, name), copyButton(`Copy the ${name}`, () => text));
    return make("div", { class: "code-block" }, head, make("pre", { tabindex: "0" }, make("code", {}, text)));
  }
  if (block.kind === "list") return showList(block);
  if (block.kind === "heading") return addInline(make(`h${Math.min(6, block.level + 2)}`), text);
  return addInline(make("p"), text);
}

// Shows a text that grows. Only the last two blocks are made anew, for what begins as a block of its own, such as the 2 of
// "2. x", may turn out to belong to the one before.
export class GrowingText {
  #element;
  #finished = 0; // the number of blocks before it
  #start = 0; // the offset of the first block that is made anew

  constructor(element) {
    this.#element = element;
  }

  // Shows the whole text as it is now.
  show(text) {
    const blocks = cutBlocks(text, this.#start);
    while (this.#element.childElementCount > this.#finished) this.#element.lastElementChild.remove();
    this.#element.append(...blocks.map(showBlock));
    const settled = Math.max(0, blocks.length - 2);
    this.#finished += settled;
    this.#start = blocks[settled]?.start ?? this.#start;
  }
}
