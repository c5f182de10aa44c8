import { IndexedDbStore, Onetake, Queue } from "/onetake/index.js";

const client = new Onetake({ attemptTimeoutMs: 3_000, attemptsMax: 4, backoffBaseMs: 100 });
const queue = new Queue({
  client,
  store: new IndexedDbStore("shop"),
  actions: () => actions, // for intents that an earlier page left
  pauseMaxMs: 1_000,
});

const rows = new Map();

/** Shows the state of one tap. */
function show(intent, state, text) {
  let row = rows.get(intent.key);
  if (!row) {
    row = document.createElement("li");
    rows.set(intent.key, row);
    document.querySelector("#rows").prepend(row);
  }
  row.className = state;
  row.textContent = `${intent.data.item}: ${text}`;
}

const actions = {
  apply: (intent) => show(intent, "pending", "on its way"),
  confirm: (intent, result) =>
    show(intent, "bought", result?.replayed ? "bought, from the recorded response" : "bought"),
  revert: (intent) => show(intent, "reverted", "sold out, and taken back"),
  unknown: (intent) => show(intent, "unknown", "nobody knows: do not buy it again"),
};

async function buy(item) {
  sessionStorage.taps = Number(sessionStorage.taps ?? 0) + 1;
  const request = {
    url: `${location.origin}/api/orders`,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ item }),
  };
  try {
    await queue.submit({ entity: item, request, data: { item } }, actions);
  } catch (error) {
    document.querySelector("#notice").textContent = error.message; // the storage is full or blocked
  }
}

async function network(change) {
  const init = change && { method: "POST", body: change };
  const state = await (await fetch("/network", init)).json();
  for (const name of ["requests", "lost", "orders"]) {
    document.querySelector(`#${name}`).textContent = state[name];
  }
  document.querySelector("#taps").textContent = sessionStorage.taps ?? 0;
  const next = state.lose > 0 ? `, next ${state.lose} lost` : "";
  document.querySelector("#line").textContent = (state.offline ? "offline" : "online") + next;
  if (change) queue.wake();
}

for (const button of document.querySelectorAll("[data-item]")) {
  button.onclick = () => buy(button.dataset.item);
}
for (const button of document.querySelectorAll("[data-network]")) {
  button.onclick = () => network(button.dataset.network);
}
document.querySelector("#reload").onclick = () => location.reload();
await queue.start();
await network();
setInterval(network, 300);
document.body.dataset.ready = "true";
