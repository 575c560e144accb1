for (const table of document.querySelectorAll("table[id^=data-]")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells], given = [...body.rows];
  const key = (row, i) => { const cell = row.cells[i]; return "v" in cell.dataset ? (cell.dataset.v === "" ? NaN : +cell.dataset.v) : cell.textContent; };
  heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
    const now = head.getAttribute("aria-sort"), next = now === "ascending" ? "descending" : now === "descending" ? null : "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    if (next) head.setAttribute("aria-sort", next);
    const sign = next === "descending" ? -1 : 1, place = new Map(given.map((row, k) => [row, k]));
    const order = (a, b) => { const x = key(a, i), y = key(b, i);
      const by = typeof x === "number" ? (isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : sign * (x - y)) : sign * x.localeCompare(y);
      return (next && by) || place.get(a) - place.get(b); };
    const last = row => row.classList.contains("margin");
    body.append(...(next ? [...given.filter(r => !last(r)).sort(order), ...given.filter(last)] : given));
  }));
}
