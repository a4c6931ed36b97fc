// Asks the server that sent this page: sends the key, reads errors, and reads streams of events.

const KEY = "tensorwright-key";
const MAX_EVENT = 4 << 20; // characters

export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

let askForKey = async () => false;
let asked = null; // The dialog for a key that is open now, as a promise.

// Sets the function that asks the user for a key. It gets whether the present key is wrong, and returns whether a key was given.
export function onMissingKey(ask) {
  askForKey = ask;
}

export function keepKey(key) {
  if (key === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, key);
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

// Returns the answer to a request, or throws ApiError. A body makes it a POST. When the server wants a key, the user is
// asked for one and the request is sent again, unless `ask` is false.
export async function request(path, { body, signal, ask = true } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = {};
    if (key !== null) headers.Authorization = `Bearer ${key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
    if (response.ok) return response;
    const error = await readError(response);
    if (response.status !== 401 || !ask) throw error;
    if (sessionStorage.getItem(KEY) !== key) continue; // Another request has brought a new key meanwhile.
    asked ??= askForKey(key !== null).finally(() => { asked = null; });
    if (!(await asked)) throw error;
  }
}

async function readError(response) {
  const text = await response.text();
  try {
    const { message, code } = JSON.parse(text).error;
    return new ApiError(response.status, message, code);
  } catch {
    return new ApiError(response.status, `the server answered ${response.status}`, null); // A proxy may have answered.
  }
}

// Yields every event of a stream as parsed JSON, and ends at [DONE]. Throws an error for an event that has one, and for a
// stream that ends before.
export async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the connection ended before the answer did");
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      if (rest.length > MAX_EVENT) throw new Error("the server sent an event that is too long");
      for (const event of events) {
        const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
        if (data.length === 0) continue;
        if (data.join("\n") === "[DONE]") return;
        const parsed = JSON.parse(data.join("\n"));
        if (parsed.error) throw new ApiError(null, parsed.error.message, parsed.error.code);
        yield parsed;
      }
    }
  } finally {
    await reader.cancel().catch(() => {}); // The stream may have failed already, which was reported above.
  }
}
