// Follows Airflow's theme, at once and live. Runs before the first paint, so that nothing flashes.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    let theme = "system";
    try {
      theme = localStorage.getItem("theme") || "system";
    } catch {
      // A browser may forbid the storage; the system's theme is then as good as any.
    }
    const wanted = theme === "light" || theme === "dark" ? theme : dark.matches ? "dark" : "light";
    document.documentElement.dataset.theme = wanted;
  };
  apply();
  addEventListener("storage", apply);
  dark.addEventListener("change", apply);
})();
