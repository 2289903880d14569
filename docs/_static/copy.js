// A button on every code block that copies its text, without the prompts of doctests.
document.addEventListener("DOMContentLoaded", () => {
  if (!navigator.clipboard) return;
  for (const block of document.querySelectorAll("div.highlight:not(.highlight-none .highlight)")) {
    const button = document.createElement("button");
    button.className = "sk-copy";
    button.type = "button";
    button.textContent = "copy";
    button.setAttribute("aria-label", "Copy this code");
    button.addEventListener("click", async () => {
      const lines = block.querySelector("pre").innerText.split("\n");
      const isDoctest = lines.some((line) => line.startsWith(">>> "));
      const code = isDoctest
        ? lines.filter((line) => /^(>>>|\.\.\.)( |$)/.test(line)).map((line) => line.slice(4))
        : lines;
      try {
        await navigator.clipboard.writeText(code.join("\n").trim() + "\n");
        button.textContent = "copied";
      } catch {
        button.textContent = "not copied";
      }
      setTimeout(() => (button.textContent = "copy"), 1500);
    });
    block.append(button);
  }
});
