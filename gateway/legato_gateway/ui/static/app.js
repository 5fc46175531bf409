// Polls the state every second and passes it to the parts of the page.

import { byId, setText } from "./dom.js";
import * as fleet from "./fleet.js";
import * as playground from "./playground.js";
import * as requests from "./requests.js";
import * as timeline from "./timeline.js";

const EVERY = 1000, PATIENCE = 8000; // milliseconds
const KEY = "legato-token";

// Takes the token from the URL's fragment, which no server sees, and removes it from the address bar immediately.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}

const headers = () => ({ authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` });

async function poll() {
  let kind, text;
  try {
    const response = await fetch(`/ui/state?since=${timeline.known()}`, {
      headers: headers(), signal: AbortSignal.timeout(PATIENCE),
    });
    if (response.status === 401) return askForToken();
    if (!response.ok) throw new Error((await response.json()).error ?? `HTTP ${response.status}`);
    const view = viewOf(await response.json());
    byId("main").hidden = false;
    for (const part of [fleet, timeline, requests, playground]) part.show(view);
    setText(byId("service"), view.title);
    [kind, text] = view.problem ? ["bad", view.problem] : ["good", "live"];
  } catch (error) {
    [kind, text] = ["bad", `no answer: ${error.message}`];
  }
  byId("status").dataset.kind = kind;
  setText(byId("status"), text);
  byId("main").classList.toggle("stale", text.startsWith("no answer"));
  setTimeout(poll, document.hidden ? 10 * EVERY : EVERY);
}

// Merges the state of all gateways into the view that the parts show.
function viewOf(state) {
  const gateways = state.gateways, service = state.service;
  const workers = new Map();
  for (const worker of gateways.flatMap((gateway) => gateway.workers)) {
    if (workers.get(worker.worker)?.connection !== "connected") workers.set(worker.worker, worker);
  }
  const all = gateways.flatMap((gateway) => gateway.requests.map(
    (request) => ({ ...request, key: `${gateway.gateway} ${request.id} ${request.arrived}` })));
  const models = gateways.map((gateway) => gateway.model.name);
  return {
    gateways, service, models, scaling: service?.scaling, title: service?.name ?? models[0] ?? "",
    now: Math.max(...gateways.map((gateway) => gateway.time)),
    workers: [...workers.values()].sort(byRole),
    requests: all.sort((a, b) => b.arrived - a.arrived),
    active: gateways.reduce((sum, gateway) => sum + gateway.active, 0),
    queued: gateways.reduce((sum, gateway) => sum + gateway.queue.queued, 0),
    problem: state.problem || gateways.map((gateway) => gateway.problem).filter(Boolean).join("; "),
  };
}

const byRole = (a, b) => (b.role ?? "").localeCompare(a.role ?? "") ||
  a.worker.localeCompare(b.worker, "en", { numeric: true });

function askForToken() {
  byId("main").hidden = true;
  byId("login").hidden = false;
  byId("status").dataset.kind = "bad";
  setText(byId("status"), sessionStorage.getItem(KEY) ? "this token is not valid" : "a token is required");
  byId("token").focus();
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("token").value);
  byId("login").hidden = true;
  byId("token").value = "";
  poll();
});

takeToken();
addEventListener("hashchange", takeToken);
timeline.start();
playground.start(headers);
poll();
