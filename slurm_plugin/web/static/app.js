// The page: hand-written, no framework. Whatever comes from jobs is put in as text, never as markup.
"use strict";

const main = document.getElementById("main");
const PAGE = 50;
const POLL_MS = 10000;
const COLOURS = ["#2a78d6", "#c2571a", "#1b8a5a", "#9b4fc0", "#b8860b", "#c43c6b", "#3a7d8c", "#6b6f76"];
const seen = new Map(); // address -> {etag, told}
let shown = ""; // what the main part was made of, so that an update without news touches nothing
let turn = 0;

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [what, handler] of Object.entries(value)) made.addEventListener(what, handler);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

async function get(address) {
  const known = seen.get(address);
  const response = await fetch(address, known && known.etag ? { headers: { "If-None-Match": known.etag } } : {});
  if (response.status === 304) return known.told;
  if (!response.ok) throw new Error((await response.text()) || response.statusText);
  const told = await response.json();
  if (seen.size > 50) seen.clear();
  seen.set(address, { etag: response.headers.get("ETag"), told });
  return told;
}

const time = (s) => (s ? new Date(1000 * s).toLocaleString() : "");
const short = (value) => (typeof value === "number" ? String(Number(value.toPrecision(4))) : value === null ? "" : String(value));
const name = (text) => el("span", { class: "name", title: text.slice(0, 500) }, text.slice(0, 500));
const jobLink = (id) => el("a", { href: `#/job/${id}` }, String(id));
const sweepLink = (sweep, user) => el("a", { href: `#/sweep/${encodeURIComponent(sweep)}/${encodeURIComponent(user)}` }, name(sweep));

function table(caption, columns, rows) {
  const head = el("tr", {}, ...columns.map(([title, number]) => el("th", { scope: "col", class: number ? "number" : null }, title)));
  const body = rows.map((cells) =>
    el("tr", {}, ...cells.map((cell, at) => el("td", { class: columns[at][1] ? "number" : null }, cell instanceof Node ? cell : short(cell)))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
}

function chart(words, series, data, times) {
  const place = el("div", { class: "chart", role: "img", "aria-label": words });
  const ink = getComputedStyle(document.body).color;
  const axis = { stroke: ink, grid: { stroke: "#8883" }, ticks: { stroke: "#8883" } };
  requestAnimationFrame(() => {
    const width = Math.max(280, Math.min(940, place.clientWidth || 600));
    const options = { width, height: 260, scales: { x: { time: times } }, axes: [axis, { ...axis, size: 60 }], series: [{}, ...series], legend: { show: false } };
    new uPlot(options, data, place);
  });
  return place;
}

function pages(total, offset, size, go) {
  const last = Math.min(total, offset + size);
  return el("div", { class: "pages" },
    el("button", { type: "button", id: "previous", disabled: offset === 0, on: { click: () => go(Math.max(0, offset - size)) } }, "Previous"),
    el("span", { role: "status" }, total ? `${offset + 1} to ${last} of ${total}` : "none"),
    el("button", { type: "button", id: "next", disabled: last >= total, on: { click: () => go(offset + size) } }, "Next"));
}

async function cluster() {
  const [told, about] = await Promise.all([get("/api/nodes"), get("/api/summary")]);
  const [times, gpus, busy, waiting] = about.samples;
  const lasts = times.length > 1 && times[times.length - 1] - times[0] > 60;
  const tiles = told.nodes.slice(0, 500).map((node) => {
    const held = node.jobs.reduce((sum, job) => sum + job[1], 0);
    const boxes = Array.from({ length: Math.min(node.gpus, 64) }, (_, at) => el("span", { class: at < held ? "gpu busy" : "gpu" }));
    const holders = node.jobs.slice(0, 8).map(([id, count]) => {
      const [label, user] = told.jobs[id] || ["", ""];
      return el("div", {}, jobLink(id), ` ${user}: ${count} GPUs `, name(label));
    });
    const free = /DOWN|DRAIN|FAIL|MAINT/.test(node.state);
    return el("li", {}, el("b", {}, node.name), " ", el("span", { class: free ? "bad" : "note" }, node.state),
      el("div", { class: "gpus", role: "img", "aria-label": `${held} of ${node.gpus} GPUs held` }, ...boxes), ...holders);
  });
  const now = (values) => (values.length ? values[values.length - 1] : 0);
  return [
    el("h1", {}, "Cluster ", about.cluster),
    el("ul", { class: "facts" }, el("li", {}, "GPUs ", el("b", {}, String(now(gpus)))), el("li", {}, "held ", el("b", {}, String(now(busy)))),
      el("li", {}, "jobs that run ", el("b", {}, String(about.running))), el("li", {}, "jobs that wait ", el("b", {}, String(about.waiting))),
      el("li", {}, "policy ", el("b", {}, about.policy)), el("li", {}, "preemptions ", el("b", {}, String(about.totals.preemptions)))),
    lasts ? el("h2", {}, "The last 24 hours") : null,
    lasts ? chart(`GPUs held: ${now(busy)} of ${now(gpus)} now; ${now(waiting)} jobs wait`,
      [{ label: "GPUs", stroke: COLOURS[7] }, { label: "held", stroke: COLOURS[0], fill: "#2a78d633" }, { label: "waiting jobs", stroke: COLOURS[1] }],
      about.samples, true) : null,
    lasts ? el("p", { class: "note" }, "Grey: GPUs. Blue: those that jobs hold. Orange: jobs that wait.") : null,
    told.leases.length ? el("h2", {}, "Reservations and leases") : null,
    told.leases.length ? table("Reservations", [["Name"], ["Job"], ["Nodes"], ["From"], ["To"]],
      told.leases.map((one) => [one.name, one.job ? jobLink(one.job) : "", one.nodes.join(", "), time(one.start_s), time(one.end_s)])) : null,
    el("h2", {}, "Nodes"),
    told.nodes.length ? el("ul", { class: "tiles" }, ...tiles) : el("p", {}, "There are no nodes to show."),
    told.nodes.length > 500 ? el("p", {}, `${told.nodes.length - 500} more nodes are not shown.`) : null,
  ];
}

const COLUMNS = [["Job"], ["Name"], ["User"], ["Partition"], ["State"], ["GPUs", true], ["Sweep"], ["Step"], ["Metric"], ["Planned start"], ["Why"]];
const asCells = (row) => [jobLink(row.jobid), name(row.name), row.user, row.partition, row.state, row.gpus,
  row.sweep ? sweepLink(row.sweep, row.user) : "", row.step, row.value === null ? "" : `${row.metric}=${short(row.value)}`, row.planned, row.reason];

async function queue(parts, params) {
  const offset = Number(params.get("offset") || 0);
  const asked = new URLSearchParams({ text: params.get("text") || "", state: params.get("state") || "", sort: params.get("sort") || "", offset });
  const told = await get(`/api/jobs?${asked}`);
  const go = (changes) => { for (const [key, value] of Object.entries(changes)) asked.set(key, value); location.hash = `#/queue?${asked}`; };
  const choice = (id, label, options) => el("label", {}, label, el("select", { id, on: { change: (e) => go({ [id]: e.target.value, offset: 0 }) } },
    ...options.map(([value, words]) => el("option", { value, selected: asked.get(id) === value }, words))));
  const search = el("form", { role: "search", on: { submit: (e) => { e.preventDefault(); go({ text: document.getElementById("text").value, offset: 0 }); } } },
    el("label", {}, "Job, name, user or sweep", el("input", { id: "text", type: "search", value: asked.get("text"), accesskey: "s" })),
    choice("state", "State", [["", "all"], ["PENDING", "waiting"], ["RUNNING", "running"], ["COMPLETING", "completing"]]),
    choice("sort", "Order", [["", "policy"], ["jobid", "job id"], ["name", "name"], ["user", "user"], ["gpus", "GPUs"], ["planned", "planned start"]]),
    el("button", {}, "Search"));
  return [el("h1", {}, "Queue"), search, table("Jobs", COLUMNS, told.rows.map(asCells)), pages(told.total, offset, PAGE, (to) => go({ offset: to }))];
}

async function sweeps() {
  const told = await get("/api/sweeps");
  return [el("h1", {}, "Sweeps"),
    told.total ? table("Sweeps", [["Sweep"], ["User"], ["Running", true], ["Waiting", true], ["Ended", true], ["GPU-hours", true]],
      told.sweeps.map((one) => [sweepLink(one.sweep, one.user), one.user, one.running, one.waiting, one.ended, one.gpu_hours])) : el("p", {}, "No sweep waits or runs.")];
}

function curves(found) {
  const steps = [...new Set(found.flatMap((curve) => curve.points.map((point) => point[0])))].sort((a, b) => a - b);
  const data = [steps, ...found.map((curve) => { const at = new Map(curve.points); return steps.map((step) => (at.has(step) ? at.get(step) : undefined)); })];
  const series = found.map((curve, at) => ({ label: String(curve.jobid), stroke: COLOURS[at % COLOURS.length], spanGaps: true, dash: curve.state === "ENDED" ? [6, 4] : undefined }));
  const last = found.map((curve) => `job ${curve.jobid}: ${short(curve.points[curve.points.length - 1][1])}`).slice(0, 10).join(", ");
  return chart(`${found.length} curves over steps; latest values: ${last}`, series, data, false);
}

async function sweep(parts) {
  const [wanted, user] = [decodeURIComponent(parts[1] || ""), decodeURIComponent(parts[2] || "")];
  const told = await get(`/api/sweep?${new URLSearchParams({ name: wanted, user })}`);
  const values = told.curves.map((curve) => [curve.jobid, name(curve.name), curve.state, curve.metric, curve.points.length ? curve.points[curve.points.length - 1][0] : "",
    curve.points.length ? curve.points[curve.points.length - 1][1] : ""]);
  values.forEach((cells) => { if (cells[2] !== "ENDED") cells[0] = jobLink(cells[0]); });
  return [el("h1", {}, "Sweep ", wanted, user ? ` of ${user}` : ""),
    told.curves.length ? curves(told.curves) : el("p", {}, "No job of it has reported yet."),
    told.curves.length ? table("Trainings", [["Job"], ["Name"], ["State"], ["Metric"], ["Step", true], ["Value", true]], values) : null,
    el("h2", {}, "Its jobs"), table("Jobs", COLUMNS, told.rows.map(asCells)),
    told.total > told.rows.length ? el("p", {}, `${told.total - told.rows.length} more are in the queue.`) : null];
}

const changes = (entries) => table("Changes", [["Time"], ["Job"], ["Field"], ["Before"], ["After"], ["Rule"], ["Why"]],
  entries.map((one) => [time(one.time_s), one.job ? jobLink(one.job) : "", one.field, short(one.before ?? null), short(one.after ?? null), one.rule,
    one.refused ? el("span", { class: "bad" }, `refused: ${one.refused}`) : one.reason]));

async function job(parts) {
  const told = await get(`/api/jobs/${parts[1]}`);
  const row = told.row;
  return [el("h1", {}, `Job ${parts[1]} `, row ? name(row.name) : ""),
    el("ul", {}, ...told.sentences.map((sentence) => el("li", {}, sentence))),
    row ? el("ul", { class: "facts" }, el("li", {}, "GPU-hours ", el("b", {}, short(row.gpu_hours))), el("li", {}, "restarts ", el("b", {}, short(row.restarts))),
      el("li", {}, "preempted ", el("b", {}, short(row.preempted))), el("li", {}, "GPU-seconds lost ", el("b", {}, short(row.lost_gpu_s)))) : null,
    told.curve ? el("h2", {}, told.curve.metric) : null, told.curve ? curves([told.curve]) : null,
    told.plan.length ? el("h2", {}, "Planned") : null,
    told.plan.length ? el("ul", {}, ...told.plan.map((line) => el("li", {}, `${line.kind}: ${line.text}`))) : null,
    el("h2", {}, "What explsched changed in the last 24 hours"), told.audit.length ? changes(told.audit) : el("p", {}, "Nothing.")];
}

async function plan() {
  const told = await get("/api/plan");
  return [el("h1", {}, "Plan of the last pass"),
    told.total ? table("Plan", [["What"], ["Jobs"], ["Why"]], told.lines.map((line) => [line.kind, el("span", {}, ...line.jobs.flatMap((id) => [jobLink(id), " "])), line.text])) : el("p", {}, "Nothing is planned."),
    told.total > told.lines.length ? el("p", {}, `${told.total - told.lines.length} more lines: sexplsched plan`) : null];
}

async function audit(parts, params) {
  const offset = Number(params.get("offset") || 0);
  const told = await get(`/api/audit?offset=${offset}`);
  return [el("h1", {}, "Changes of the last 24 hours"), told.fault ? el("p", { class: "warn" }, told.fault) : null, changes(told.entries),
    pages(told.total, offset, 200, (to) => { location.hash = `#/audit?offset=${to}`; })];
}

const VIEWS = { cluster, queue, sweeps, sweep, job, plan, audit };
const TITLES = { cluster: "Cluster", queue: "Queue", sweeps: "Sweeps", sweep: "Sweep", job: "Job", plan: "Plan", audit: "Changes" };

async function show(moved) {
  const mine = ++turn;
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/");
  const view = Object.hasOwn(VIEWS, parts[0]) ? parts[0] : "cluster";
  document.title = `${TITLES[view]} - explsched`;
  for (const link of document.querySelectorAll("nav a")) {
    const of = { sweep: "sweeps", job: "queue" }[view] || view;
    if (link.getAttribute("href") === `#/${of}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  let made;
  try {
    made = await VIEWS[view](parts, new URLSearchParams(query || ""));
  } catch (error) {
    made = [el("h1", {}, TITLES[view]), el("p", { class: "bad", role: "alert" }, String(error.message || error))];
  }
  if (mine !== turn) return;
  const before = document.activeElement && document.activeElement.id;
  const signature = location.hash + made.map((part) => (part ? part.outerHTML : "")).join("");
  if (moved || signature !== shown) {
    if (!moved && before === "text") return; // somebody is typing
    shown = signature;
    main.replaceChildren(...made.filter((part) => part));
    const again = before && document.getElementById(before);
    if (again && !moved) again.focus();
    if (moved && moved !== "first") main.focus({ preventScroll: false });
  }
  main.dataset.ready = view;
}

async function age() {
  const place = document.getElementById("age");
  try {
    const told = await get("/api/summary");
    place.textContent = told.is_stale ? `No daemon has published for ${Math.round(told.age_s)} s: what you see is old` : `as of ${time(told.written_s)}`;
    place.className = told.is_stale ? "stale" : "";
  } catch (error) {
    place.textContent = String(error.message || error);
    place.className = "stale";
  }
}

addEventListener("hashchange", () => { delete main.dataset.ready; show("moved"); });
setInterval(() => { if (!document.hidden) { age(); show(false); } }, POLL_MS);
age();
show("first");
