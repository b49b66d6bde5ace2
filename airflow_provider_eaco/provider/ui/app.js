import { h, patch } from "./dom.js";
const main = document.getElementById("main");
async function tick() {
  const answer = await fetch("api/v1/overview");
  const body = await answer.json();
  patch(main, h("h1", null, "GPUs"), h("pre", null, JSON.stringify(body, null, 1)));
}
tick();
setInterval(tick, 2000);
