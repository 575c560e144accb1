{
  const box = document.getElementById("find-table"), lines = [...document.querySelectorAll(".index li")];
  const tables = lines.map(line => document.querySelector(line.querySelector("a").hash).parentElement);
  const open = () => { const k = lines.findIndex(line => line.querySelector("a").hash === location.hash); if (k >= 0) { tables[k].open = true; tables[k].scrollIntoView(); } };
  const parts = text => text.toLowerCase().split(/[^\p{L}\p{M}\p{N}]+/u).filter(part => part); // words by their beginnings: "age" is not in "wages"
  box.parentElement.hidden = false;
  box.addEventListener("input", () => {
    const words = parts(box.value);
    lines.forEach((line, k) => { line.hidden = tables[k].hidden = !words.every(word => parts(line.textContent).some(part => part.startsWith(word))); });
    box.nextElementSibling.textContent = words.length ? lines.filter(line => !line.hidden).length + " of " + lines.length + " tables" : "";
  });
  addEventListener("hashchange", open);
  lines.forEach(line => line.addEventListener("click", () => setTimeout(open)));
  open();
}
