// What all views are made of. Whatever comes from jobs is put in as text, never as markup.

// Control characters, and those that turn the direction of the text behind them, also of ours.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
export const plain = (text) => (typeof text === "string" ? text.replace(UNSEEN, "\ufffd") : text);

export function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [what, handler] of Object.entries(value)) made.addEventListener(what, handler);
    else made.setAttribute(name, value === true ? "" : name === "href" || name === "value" ? value : plain(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map(plain));
  return made;
}

const seen = new Map(); // address -> {etag, told}
export const state = { age: null };

export async function get(address) {
  const known = seen.get(address);
  const response = await fetch(address, { cache: "no-store", headers: known && known.etag ? { "If-None-Match": known.etag } : {} });
  const age = response.headers.get("X-State-Age");
  if (age !== null) state.age = Number(age);
  if (response.status === 304) return known.told;
  if (!response.ok) throw new Error((await response.text()).trim() || response.statusText);
  const told = await response.json();
  if (seen.size > 50) seen.clear();
  seen.set(address, { etag: response.headers.get("ETag"), told });
  return told;
}

export const time = (s) => (s ? new Date(1000 * s).toLocaleString() : "");
export const clock = (s) => (s ? new Date(1000 * s).toLocaleTimeString() : "");
export function short(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  return size >= 1e6 || (size > 0 && size < 1e-4) ? value.toPrecision(3).replace(/\.?0+e/, "e") : String(Number(value.toPrecision(4)));
}
export const name = (text) => el("span", { class: "name", title: text.slice(0, 300) }, text.slice(0, 300));
export const jobLink = (id) => el("a", { href: `#/job/${id}` }, String(id));
export const sweepLink = (sweep, user) => el("a", { href: `#/sweep/${encodeURIComponent(sweep)}/${encodeURIComponent(user)}` }, name(sweep));
const STATES = { RUNNING: "running", serving: "running", PENDING: "waiting", COMPLETING: "", running: "running", paused: "paused", stopped: "stopped", done: "" };
export const badge = (word) => el("span", { class: `state ${STATES[word] || ""}` }, STATES[word] && word === word.toUpperCase() ? STATES[word] : word.toLowerCase());

export const card = (title, ...children) => el("section", { class: "card" }, title ? el("h2", {}, title) : null, ...children);
export const facts = (pairs) => el("ul", { class: "facts" }, ...pairs.map(([words, value, of]) =>
  el("li", {}, words, el("b", {}, String(value), of ? el("small", {}, ` ${of}`) : null))));

/** Columns are {title, number, wide, sort}; `wide` ones are left out on a phone. */
export function table(title, columns, rows, options = {}) {
  const look = (column) => [column.number ? "number" : "", column.wide ? "wide" : ""].join(" ").trim() || null;
  const head = el("tr", {}, ...columns.map((column) => el("th", { scope: "col", class: look(column), "aria-sort": column.sort && options.sorted === column.sort ? "ascending" : null },
    column.sort ? el("button", { type: "button", id: `sort-${column.sort}`, on: { click: () => options.sort(column.sort) } }, column.title) : column.title)));
  const body = rows.map((cells, at) => el("tr", options.row ? options.row(at) : {}, ...cells.map((cell, place) => el("td", { class: look(columns[place]) }, cell instanceof Node ? cell : short(cell)))));
  return el("section", { class: "card flush" }, options.hidden ? null : el("h2", {}, title),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body))),
    options.foot || null);
}

export function pages(total, offset, size, go) {
  const last = Math.min(total, offset + size);
  return el("div", { class: "pages" },
    el("button", { class: "plain", type: "button", id: "previous", disabled: offset === 0, on: { click: () => go(Math.max(0, offset - size)) } }, "Previous"),
    el("button", { class: "plain", type: "button", id: "next", disabled: last >= total, on: { click: () => go(offset + size) } }, "Next"),
    el("span", { role: "status" }, total ? `${offset + 1} to ${last} of ${total}` : "none"));
}
