// One function a view: it asks for what it shows and gives the nodes to show.
import { badge, card, clock, el, facts, get, jobLink, name, pages, short, sweepLink, table, time } from "./page.js";
import { chart, colour, curves, legend, light, parallel } from "./charts.js";

const PAGE = 50;
const MOST_TILES = 500;
const hue = (job) => job % 7;
const now = (values) => (values.length ? values[values.length - 1] : 0);

async function cluster() {
  const [told, about] = await Promise.all([get("/api/nodes"), get("/api/summary")]);
  const [times, gpus, busy, waiting] = about.samples;
  const lasts = times.length > 1 && times[times.length - 1] - times[0] > 60;
  const tiles = told.nodes.slice(0, MOST_TILES).map((node) => {
    const held = node.devices.filter((holders) => holders.length).length;
    const boxes = node.devices.slice(0, 64).map((holders) => el("span", { class: "gpu" }, ...holders.map((job) => el("i", { class: job ? `c${hue(job)}` : "hidden-job" }))));
    const holders = node.jobs.slice(0, 6).map(([id, count]) => {
      const [label, user] = told.jobs[id] || ["", ""];
      return el("div", { class: "holder" }, el("span", { class: `dot c${hue(id)}` }), jobLink(id), el("span", {}, user), el("span", {}, `${count}\u00a0GPU${count === 1 ? "" : "s"}`), name(label));
    });
    return el("li", {}, el("header", {}, el("b", {}, node.name), el("span", { class: `state ${/\b(DOWN|DRAIN|FAIL|MAINT|NOT_RESPONDING)/.test(node.state) ? "stopped" : ""}` }, node.state.toLowerCase())),
      el("div", { class: "gpus", role: "img", "aria-label": `${held} of ${node.gpus} GPUs held` }, ...boxes), ...holders,
      node.jobs.length > 6 ? el("div", { class: "note" }, `and ${node.jobs.length - 6} more jobs`) : null);
  });
  return [
    el("h1", {}, "Cluster ", about.cluster),
    facts([["GPUs held", now(busy), `of ${now(gpus)}`], ["Jobs running", about.running], ["Jobs waiting", about.waiting], ["Sweeps", about.sweeps],
      ["Preemptions", about.totals.preemptions], ["Early stops", about.totals.stops], ["Last pass", about.totals.pass_s.toFixed(2), "s"], ["Policy", about.policy]]),
    lasts ? card("The last 24 hours",
      chart(`GPUs held: ${now(busy)} of ${now(gpus)} now; ${now(waiting)} jobs wait`,
        [{ stroke: colour(7) }, { stroke: colour(0), fill: `${colour(0)}33` }, { stroke: colour(1) }], about.samples, { times: true, scale: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } }),
      legend([[0, "GPUs that jobs hold"], [7, "all GPUs"], [1, "jobs that wait"]])) : null,
    card("Nodes", told.nodes.length ? el("ul", { class: "tiles" }, ...tiles) : el("p", { class: "empty" }, "There are no nodes to show."),
      told.nodes.length ? el("p", { class: "note" }, "A square is a GPU, a colour a job; a square of several colours is shared.") : null,
      told.nodes.length > MOST_TILES ? el("p", { class: "note" }, `${told.nodes.length - MOST_TILES} more nodes are not shown.`) : null),
    told.leases.length ? table("Reservations and leases", [{ title: "Name" }, { title: "Job" }, { title: "Nodes" }, { title: "From" }, { title: "To" }],
      told.leases.map((one) => [one.name, one.job ? jobLink(one.job) : "", one.nodes.join(", "), time(one.start_s), time(one.end_s)])) : null,
  ];
}

const COLUMNS = [{ title: "Job", sort: "jobid" }, { title: "Name", sort: "name" }, { title: "User", sort: "user" }, { title: "Partition", wide: true }, { title: "State" },
  { title: "GPUs", number: true, sort: "gpus" }, { title: "Sweep", wide: true }, { title: "Step", wide: true, number: true }, { title: "Value", wide: true }, { title: "Planned start (cluster's time)", wide: true, sort: "planned" }, { title: "Why", wide: true }];
const asCells = (row) => [jobLink(row.jobid), name(row.name), row.user, row.partition, badge(row.state), row.gpus,
  row.sweep ? sweepLink(row.sweep, row.user) : "", row.step, row.value === null ? "" : `${row.metric}=${short(row.value)}`, row.planned === "N/A" ? "" : row.planned.replace("T", " "), row.reason];

async function queue(parts, params) {
  const asked = new URLSearchParams({ text: params.get("text") || "", state: params.get("state") || "", sort: params.get("sort") || "", offset: params.get("offset") || 0 });
  const told = await get(`/api/jobs?${asked}`);
  const go = (changes) => { for (const [key, value] of Object.entries(changes)) asked.set(key, value); location.hash = `#/queue?${asked}`; };
  const choice = (id, label, options) => el("label", {}, label, el("select", { id, on: { change: (e) => go({ [id]: e.target.value, offset: 0 }) } },
    ...options.map(([value, words]) => el("option", { value, selected: asked.get(id) === value }, words))));
  const search = el("form", { role: "search", on: { submit: (e) => { e.preventDefault(); go({ text: document.getElementById("text").value, offset: 0 }); } } },
    el("label", {}, "Job, name, user or sweep", el("input", { id: "text", type: "search", value: asked.get("text"), accesskey: "s" })),
    choice("state", "State", [["", "all"], ["PENDING", "waiting"], ["RUNNING", "running"], ["COMPLETING", "completing"]]),
    choice("sort", "Order", [["", "policy"], ["jobid", "job id"], ["name", "name"], ["user", "user"], ["gpus", "GPUs"], ["planned", "planned start"]]),
    el("button", { class: "plain" }, "Search"));
  return [el("h1", {}, "Queue"), search,
    table("Jobs", COLUMNS, told.rows.map(asCells), { hidden: true, sorted: asked.get("sort"), sort: (key) => go({ sort: key, offset: 0 }), foot: pages(told.total, told.offset, PAGE, (to) => go({ offset: to })) })];
}

async function sweeps() {
  const told = await get("/api/sweeps");
  return [el("h1", {}, "Sweeps"),
    told.total ? table("Sweeps", [{ title: "Sweep" }, { title: "User" }, { title: "Best", number: true }, { title: "Running", number: true }, { title: "Waiting", number: true }, { title: "Paused", number: true, wide: true }, { title: "Ended", number: true, wide: true }, { title: "GPU-hours", number: true }],
      told.sweeps.map((one) => [sweepLink(one.sweep, one.user), one.user, one.best === null ? "" : `${one.metric} ${short(one.best)}`, one.running, one.waiting, one.paused, one.ended, one.gpu_hours]), { hidden: true })
      : card("", el("p", { class: "empty" }, "No sweep waits or runs.")),
    told.total > told.sweeps.length ? el("p", { class: "note" }, `${told.total - told.sweeps.length} more are not shown.`) : null];
}

const TRAININGS = [{ title: "Job" }, { title: "State" }, { title: "Best", number: true }, { title: "Step", number: true }, { title: "GPU-hours", number: true, wide: true }, { title: "Parameters" }, { title: "Why", wide: true }];

async function sweep(parts) {
  const [wanted, user] = [decodeURIComponent(parts[1] || ""), decodeURIComponent(parts[2] || "")];
  const told = await get(`/api/sweep?${new URLSearchParams({ name: wanted, user })}`);
  const found = told.trainings;
  const metric = found.length ? found[0].curve.metric : "";
  const rows = found.map(({ curve, state, reason }) => [state === "running" || state === "paused" ? jobLink(curve.jobid) : curve.jobid, badge(state), curve.best,
    curve.points[curve.points.length - 1][0] + (curve.total_steps ? `/${curve.total_steps}` : ""), curve.gpu_hours,
    name(curve.params.map(([key, value]) => `${key}=${short(value)}`).join(", ")), reason]);
  const lit = (at) => ({ "data-job": found[at].curve.jobid, on: { mouseenter: () => light(found[at].curve.jobid), mouseleave: () => light(null), focusin: () => light(found[at].curve.jobid), focusout: () => light(null) } });
  const lines = found.length ? parallel(found, metric) : null;
  return [el("h1", {}, "Sweep ", wanted.slice(0, 200), user ? ` of ${user}` : ""),
    facts([[metric ? `Best ${metric.slice(0, 40)}` : "Best", told.best === null ? "none yet" : short(told.best)], ["Running", told.running], ["Waiting", told.waiting], ["Stopped early", told.stopped],
      ["Paused", told.paused], ["GPU-hours", short(told.gpu_hours)], ["GPU-hours saved", short(told.saved_gpu_hours), "by early stops"]]),
    found.length ? el("div", { class: "split" },
      card(`${metric.slice(0, 80)} over steps`, curves(found, `${found.length} curves; best ${short(told.best)}`), legend([[1, "best so far"], [0, "others"], ...(told.stopped ? [[7, "stopped early (dashed)"]] : [])])),
      lines ? card("Parameters against value", lines, el("p", { class: "note" }, "Each line is a training; point at a row below to see its own.")) : null)
      : card("", el("p", { class: "empty" }, "No job of it has reported yet.")),
    found.length ? table("Trainings, best first", TRAININGS, rows, { row: lit }) : null,
    told.total > found.length ? el("p", { class: "note" }, `${told.total - found.length} more have reported: sexplsched sweep show`) : null,
    told.silent.length ? table("Jobs that have not reported", COLUMNS.map((column) => ({ ...column, sort: null })), told.silent.map(asCells)) : null,
    told.silent_total > told.silent.length ? el("p", { class: "note" }, `${told.silent_total - told.silent.length} more are in the queue.`) : null];
}

const CHANGES = [{ title: "Time" }, { title: "Job" }, { title: "Field" }, { title: "Before", wide: true }, { title: "After" }, { title: "Rule", wide: true }, { title: "Why" }];
const changeRows = (entries) => entries.map((one) => [time(one.time_s), one.job ? jobLink(one.job) : "", one.field, short(one.before), short(one.after), one.rule,
  one.refused ? el("span", { class: "bad" }, `refused: ${one.refused}`) : one.reason]);
const EVENTS = new Set(["preemption", "stop", "lease", "size", "requeue delay"]);

async function job(parts) {
  const told = await get(`/api/jobs/${parts[1]}`);
  const row = told.row;
  const events = told.audit.filter((one) => EVENTS.has(one.rule) && !one.refused);
  return [el("h1", {}, `Job ${parts[1]} `, row ? name(row.name) : ""),
    row ? facts([["State", row.state.toLowerCase()], ["GPUs", row.gpus, row.device], ["GPU-hours", short(row.gpu_hours)], ["Restarts", row.restarts], ["Preempted", row.preempted], ["GPU-seconds lost", short(row.lost_gpu_s)],
      row.planned ? ["Planned start", row.planned.replace("T", " "), "cluster's time"] : ["Sharing", row.sharing || "alone"]]) : null,
    card("What is known of it", el("ul", { class: "sentences" }, ...told.sentences.map((sentence) => el("li", {}, sentence)))),
    told.curve ? card(told.curve.metric, curves([{ curve: told.curve, state: "running" }], `${told.curve.points.length} values; best ${short(told.curve.best)}`)) : null,
    told.plan.length ? card("Planned", el("ul", { class: "sentences" }, ...told.plan.map((line) => el("li", {}, `${line.kind}: ${line.text}`)))) : null,
    events.length ? card("Timeline", el("ol", { class: "timeline" }, ...events.map((one) => el("li", {}, el("time", { datetime: new Date(1000 * one.time_s).toISOString() }, time(one.time_s)), `${one.field} ${short(one.after)}: ${one.reason}`)))) : null,
    told.audit.length ? table("What explsched changed in the last 24 hours", CHANGES, changeRows(told.audit)) : card("What explsched changed in the last 24 hours", el("p", { class: "empty" }, "Nothing."))];
}

function inFlight(replica) {
  const load = replica.load;
  if (!load) return replica.in_flight;
  const cache = load.kv_cache === null ? "" : `, KV cache ${Math.round(100 * load.kv_cache)} %`;
  return `${replica.in_flight} (${load.waiting} waiting inside${cache})`;
}

const MEAN = "mean time in the gateway over the last minute, by Little's law";

async function gateway() {
  const told = await get("/api/gateways");
  if (!told.gateways.length) return [el("h1", {}, "Gateway"), card("", el("p", { class: "empty" }, "No inference gateway is shown here: sexplsched web --gateway DIRECTORY"))];
  return told.gateways.flatMap((one) => [
    el("h1", {}, "Gateway ", one.name, one.closing ? " (closing)" : ""),
    one.fault ? el("p", { class: "alert", role: "alert" }, one.fault) : null,
    one.is_stale ? el("p", { class: "alert", role: "alert" }, `Its control plane has not reported since ${time(one.written_s)}.`) : null,
    ...one.services.flatMap((service) => [
      card(service.name,
        facts([["Ready", service.serving, `of ${service.wanted === null ? "?" : service.wanted} wanted`], ["Starting", service.coming], ["Requests/s", service.arrivals], ["In flight", service.in_flight, `${service.queued} queued`],
          ["Latency", service.latency_s === null ? "\u2013" : short(1000 * service.latency_s), service.latency_s === null ? "no requests" : "ms"], ["Tokens today", short(service.tokens.prompt + service.tokens.completion), `${short(service.tokens.requests)} requests`]]),
        el("p", { class: "note" }, service.given_up ? el("span", { class: "bad" }, "Given up after failed starts.") : `${service.reason} (${service.minimum} to ${service.maximum} replicas; a start takes ${short(service.start_s)} s; latency: ${MEAN})`),
        service.loads[0].length > 1 ? chart(`${service.name}: requests, in flight and queued, of the last minutes`, [{ stroke: colour(0) }, { stroke: colour(2) }, { stroke: colour(1) }], service.loads.slice(0, 4), { times: true, scale: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } }) : null,
        service.loads[0].length > 1 ? legend([[0, "requests a second"], [2, "in flight"], [1, "queued"]]) : null),
      service.replicas.length ? table(`Replicas of ${service.name}`, [{ title: "Replica" }, { title: "Phase" }, { title: "Job" }, { title: "Host", wide: true }, { title: "In flight", number: true }, { title: "Since", wide: true }, { title: "Ends", wide: true }, { title: "Why" }],
        service.replicas.map((replica) => [replica.name, badge(replica.phase), replica.job_id ? jobLink(replica.job_id) : "", replica.host, inFlight(replica), clock(replica.since_s), time(replica.ends_s), replica.reason])) : null]),
    one.events.length ? table("Scaling decisions, the newest first", [{ title: "Time" }, { title: "What" }, { title: "Service" }, { title: "Replicas", number: true }, { title: "Why" }],
      one.events.map((entry) => [time(entry.unix_s), entry.event, entry.service, Array.isArray(entry.replicas) ? entry.replicas.length : entry.replicas, entry.reason || entry.replica])) : null,
  ]);
}

async function plan() {
  const told = await get("/api/plan");
  return [el("h1", {}, "Plan of the last pass"),
    told.total ? table("Plan", [{ title: "What" }, { title: "Jobs" }, { title: "Why" }], told.lines.map((line) => [line.kind, el("span", {}, ...line.jobs.flatMap((id) => [jobLink(id), " "])), line.text]), { hidden: true })
      : card("", el("p", { class: "empty" }, "Nothing is planned.")),
    told.total > told.lines.length ? el("p", { class: "note" }, `${told.total - told.lines.length} more lines: sexplsched plan`) : null];
}

async function audit(parts, params) {
  const text = params.get("text") || "";
  const asked = new URLSearchParams({ text, offset: params.get("offset") || 0 });
  const told = await get(`/api/audit?${asked}`);
  const go = (changes) => { for (const [key, value] of Object.entries(changes)) asked.set(key, value); location.hash = `#/audit?${asked}`; };
  return [el("h1", {}, "Changes of the last 24 hours"),
    el("form", { role: "search", on: { submit: (e) => { e.preventDefault(); go({ text: document.getElementById("text").value, offset: 0 }); } } },
      el("label", {}, "Job, user, field or rule", el("input", { id: "text", type: "search", value: text, accesskey: "s" })), el("button", { class: "plain" }, "Search")),
    told.fault ? el("p", { class: "alert" }, told.fault) : null,
    table("Changes", CHANGES, changeRows(told.entries), { hidden: true, foot: pages(told.total, told.offset, 200, (to) => go({ offset: to })) })];
}

export const VIEWS = { cluster, queue, sweeps, sweep, job, gateway, plan, audit };
export const TITLES = { cluster: "Cluster", queue: "Queue", sweeps: "Sweeps", sweep: "Sweep", job: "Job", gateway: "Gateway", plan: "Plan", audit: "Changes" };
export const PARENTS = { sweep: "sweeps", job: "queue" };
