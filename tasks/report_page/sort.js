// Sorts a table by the column whose heading is pressed; a second press turns the order.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const current = heading.getAttribute("aria-sort");
      // Names start with A, scores with the highest.
      const descending = current === "none" ? column > 0 : current === "ascending";
      headings.forEach((each) => each.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      const key = (row) => row.cells[column].dataset.key;
      rows.sort((first, second) => compare(key(first), key(second), descending));
      table.tBodies[0].append(...rows);
    });
  });
}
function compare(first, second, descending) {
  // Cells without a value come last in either order.
  if (first === "" || second === "") return (first === "") - (second === "");
  const numbers = [Number(first), Number(second)];
  const order = numbers.some(Number.isNaN) ? first.localeCompare(second) : numbers[0] - numbers[1];
  return descending ? -order : order;
}
