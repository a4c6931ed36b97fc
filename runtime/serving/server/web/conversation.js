// Keeps the conversation as messages of the API, and reads and writes it as JSON.

const ROLES = ["system", "developer", "user", "assistant", "tool"];
const MAX_MESSAGES = 2000;

export const MAX_FILE = 8 << 20; // bytes

// A turn has the message, and what the page knows of it: the figures that were measured, the fault that ended it, whether
// it is plain text, and whether its thinking is open.
export class Conversation {
  turns = [];

  get last() {
    return this.turns.at(-1);
  }

  // Returns the index of the user's last question, -1 without one.
  get lastQuestion() {
    return this.turns.findLastIndex(({ message }) => message.role === "user");
  }

  add(message, more = {}) {
    this.turns.push({ message, ...more });
  }

  // Returns the messages to send. system: a text that comes first, unless it is empty.
  messages(system) {
    const first = system.trim() === "" ? [] : [{ role: "system", content: system }];
    return [...first, ...this.turns.map(({ message }) => message)];
  }
}

// Returns the messages of an exported conversation, or throws an Error that says what is wrong.
export function readMessages(text) {
  const parsed = JSON.parse(text);
  const messages = Array.isArray(parsed) ? parsed : parsed?.messages;
  if (!Array.isArray(messages)) throw new Error('the file must hold a list of messages, or an object with "messages"');
  if (messages.length > MAX_MESSAGES) throw new Error(`the file has more than ${MAX_MESSAGES} messages`);
  messages.forEach((message, index) => {
    const { role, content, tool_calls: calls } = message ?? {};
    if (!ROLES.includes(role)) throw new Error(`message ${index + 1} has an unknown role`);
    const partsHold = Array.isArray(content) && content.every((part) => part?.type === "text" && typeof part.text === "string");
    if (!(typeof content === "string" || partsHold || (content ?? null) === null)) {
      throw new Error(`message ${index + 1} must have a text`);
    }
    const callsHold = (calls ?? null) === null || (Array.isArray(calls) && calls.every((call) => typeof call?.function?.name === "string"));
    if (!callsHold) throw new Error(`message ${index + 1} has tool calls in no known form`);
  });
  return messages;
}

// Returns a message's content as one text.
export function textOf({ content }) {
  if (Array.isArray(content)) return content.map(({ text }) => text).join("\n");
  return content ?? "";
}
