// Before anything is drawn: the theme that was chosen here, if any. Without one the system's is used.
"use strict";
try {
  const chosen = localStorage.getItem("lmprog-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // storage is switched off: the system's theme it is
}
