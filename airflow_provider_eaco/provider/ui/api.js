// Requests to the API beside this page. One clock: that of the server's store.

const root = "api/v1/";
const seen = new Map();
let clockOffsetMs = 0;

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The store's present instant in seconds, as far as this browser knows. */
export const nowS = () => (Date.now() + clockOffsetMs) / 1000;

/** Ask for a path; an unchanged answer costs a few bytes and is the same object as before. */
export async function get(path) {
  const known = seen.get(path);
  const headers = known?.etag ? { "If-None-Match": known.etag } : {};
  const answer = await fetch(root + path, { headers, cache: "no-store" });
  if (answer.status === 304) return known.body;
  const body = await read(answer);
  if (typeof body.now_s === "number") clockOffsetMs = body.now_s * 1000 - Date.now();
  // Only what is shown now is worth keeping: a view, what stands beside it and the totals above it.
  seen.delete(path);
  while (seen.size > 2) seen.delete(seen.keys().next().value);
  seen.set(path, { etag: answer.headers.get("ETag"), body });
  return body;
}

/** Change something; the answer's body, or null where there is none. */
export async function change(method, path, body) {
  const answer = await fetch(root + path, {
    method,
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  return answer.status === 204 ? null : read(answer);
}

async function read(answer) {
  let body = null;
  try {
    body = await answer.json();
  } catch {
    throw new ApiError(answer.status, "no_answer", `the server answered ${answer.status} without a reason`);
  }
  if (answer.ok) return body;
  const { code = "unknown", message = `the server answered ${answer.status}` } = body.error || {};
  throw new ApiError(answer.status, code, message);
}
