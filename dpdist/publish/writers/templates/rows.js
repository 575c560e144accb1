for (const box of document.querySelectorAll("input[data-table]")) box.addEventListener("input", () => {
  const rows = [...document.getElementById(box.dataset.table).tBodies[0].rows], wanted = box.value.trim().toLowerCase();
  for (const row of rows) row.hidden = ![...row.querySelectorAll("th")].some(cell => cell.textContent.toLowerCase().includes(wanted));
  box.nextElementSibling.textContent = wanted ? rows.filter(row => !row.hidden).length + " of " + rows.length + " rows" : "";
});
