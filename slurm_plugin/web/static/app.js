// The page: hand-written, no framework. Shows the view that the address names, and keeps it up to date.
import { el, get, state, time } from "./page.js";
import { draw } from "./charts.js";
import { PARENTS, TITLES, VIEWS } from "./views.js";

const main = document.getElementById("main");
const POLL_MS = 10000;
let shown = ""; // what the main part was made of, so that an update without news touches nothing
let turn = 0;

async function show(moved) {
  const mine = ++turn;
  const began = performance.now();
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/");
  const view = Object.hasOwn(VIEWS, parts[0]) ? parts[0] : "cluster";
  document.title = `${TITLES[view]} - explsched`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${PARENTS[view] || view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  let made;
  try {
    made = await VIEWS[view](parts, new URLSearchParams(query || ""));
  } catch (error) {
    made = [el("h1", {}, TITLES[view]), el("p", { class: "alert", role: "alert" }, String(error.message || error))];
  }
  if (mine !== turn) return;
  made = made.filter((part) => part);
  const { id: before, value, defaultValue, selectionStart, selectionEnd } = document.activeElement || {};
  const signature = location.hash + made.map((part) => part.outerHTML).join("");
  const isTyping = before === "text" && value !== defaultValue; // what has not been asked for yet
  if (moved || (signature !== shown && !isTyping)) {
    shown = signature;
    const sideways = [...main.querySelectorAll(".scroll")].map((part) => part.scrollLeft);
    main.replaceChildren(...made);
    draw(main);
    if (!moved) main.querySelectorAll(".scroll").forEach((part, at) => { part.scrollLeft = sideways[at] || 0; });
    const again = before && document.getElementById(before);
    if (again && main.contains(again)) {
      again.focus({ preventScroll: !moved });
      if (before === "text" && again.value === value) again.setSelectionRange(selectionStart, selectionEnd);
    } else if (moved && moved !== "first") { main.focus({ preventScroll: true }); scrollTo(0, 0); }
  }
  main.dataset.ready = view;
  requestAnimationFrame(() => performance.measure("update", { start: began, end: performance.now() }));
}

async function age() {
  const place = document.getElementById("age");
  try {
    const told = await get("/api/summary");
    const isStale = state.age > told.stale_after_s;
    place.textContent = isStale ? `No daemon has published for ${Math.round(state.age)} s: what you see is old` : `as of ${time(told.written_s)}`;
    place.className = isStale ? "stale" : "";
  } catch (error) {
    place.textContent = String(error.message || error);
    place.className = "stale";
  }
}

document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); }); // #main is no view
addEventListener("hashchange", () => { delete main.dataset.ready; show("moved"); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show("first"));
const poll = () => { if (!document.hidden) { age(); show(false); } };
document.addEventListener("visibilitychange", poll); // who comes back to the page sees what is new at once
setInterval(poll, POLL_MS);
age();
show("first");
