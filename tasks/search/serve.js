"use strict";
// Sends a picture to the server and shows the nearest images. Texts are set as text, never as HTML.
const drop = document.getElementById("drop");
const file = document.getElementById("file");
const preview = document.getElementById("preview");
const status = document.getElementById("status");
const results = document.getElementById("results");
const count = document.getElementById("count");
const viewer = document.getElementById("viewer");
let latest = null;
let number = 0;

function say(text, isError) {
  status.textContent = text;
  status.classList.toggle("error", Boolean(isError));
}

async function search(name, source, request) {
  const own = ++number;
  latest = () => search(name, source, request);
  preview.src = source;
  preview.hidden = false;
  drop.classList.add("filled", "busy");
  document.getElementById("invitation").textContent = "Drop another picture";
  say("Searching …");
  try {
    const response = await fetch(...request(count.value));
    const answer = await response.json();
    // A later search has begun meanwhile.
    if (own !== number) return;
    if (!response.ok) throw new Error(answer.error || response.statusText);
    show(answer.neighbors);
    say(`${answer.neighbors.length} nearest images of ${name}`);
  } catch (error) {
    if (own !== number) return;
    results.replaceChildren();
    const isLost = error instanceof TypeError;
    say(isLost ? "The server does not answer. Is dml serve still running?" : error.message, true);
  } finally {
    if (own === number) drop.classList.remove("busy");
  }
}

function searchFile(chosen) {
  if (!chosen) return;
  const source = URL.createObjectURL(chosen);
  search(chosen.name || "the picture", source, (top) => [
    `search?top=${top}`,
    { method: "POST", body: chosen, headers: { "Content-Type": "application/octet-stream" } },
  ]);
}

function searchIndexed(each) {
  scrollTo({ top: 0, behavior: "smooth" });
  search(each.name, `picture/${each.position}`, (top) => [`similar/${each.position}?top=${top}`]);
}

function show(neighbors) {
  results.replaceChildren(...neighbors.map(makeCard));
}

function makeCard(each) {
  const item = document.createElement("li");
  const figure = document.createElement("figure");
  const open = document.createElement("button");
  open.type = "button";
  open.className = "picture";
  open.setAttribute("aria-label", `Show ${each.name} larger`);
  const image = new Image();
  image.loading = "lazy";
  image.alt = "";
  image.addEventListener("error", () => {
    const gone = document.createElement("div");
    gone.className = "gone";
    gone.textContent = "no longer there";
    open.replaceChildren(gone);
  });
  image.src = `picture/${each.position}`;
  open.append(image);
  open.addEventListener("click", () => enlarge(each));
  const caption = document.createElement("figcaption");
  const score = document.createElement("span");
  score.className = "score";
  score.textContent = each.score;
  const name = document.createElement("span");
  name.className = "name";
  name.textContent = each.name;
  name.title = each.name;
  const more = document.createElement("button");
  more.type = "button";
  more.className = "more";
  more.textContent = "Similar to this";
  more.addEventListener("click", () => searchIndexed(each));
  caption.append(score, name, more);
  figure.append(open, caption);
  item.append(figure);
  return item;
}

function enlarge(each) {
  const large = document.getElementById("large");
  large.src = `picture/${each.position}?size=large`;
  large.alt = each.name;
  document.getElementById("caption").textContent = `${each.name} · ${each.score}`;
  viewer.showModal();
}

viewer.addEventListener("click", (event) => {
  if (event.target === viewer) viewer.close();
});
file.addEventListener("change", () => {
  searchFile(file.files[0]);
  file.value = "";
});
count.addEventListener("change", () => latest && latest());
for (const kind of ["dragover", "drop"]) {
  document.addEventListener(kind, (event) => event.preventDefault());
}
document.addEventListener("dragover", () => drop.classList.add("over"));
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) drop.classList.remove("over");
});
document.addEventListener("drop", (event) => {
  drop.classList.remove("over");
  searchFile(event.dataTransfer.files[0]);
});
document.addEventListener("paste", (event) => {
  const pasted = [...event.clipboardData.files].find((each) => each.type.startsWith("image/"));
  if (pasted) searchFile(pasted);
  else say("There is no picture in the clipboard.", true);
});
