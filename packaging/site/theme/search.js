/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the sections that have every word of the query; those that have it in their title come first. */
"use strict";

(() => {
	const MOST = 20, AROUND = 90;
	const field = document.getElementById("query"), list = document.getElementById("results");
	let index;

	async function load() {
		index ??= fetch(base_url + "/search/search_index.json").then(answer => answer.json()).then(all => all.docs
			/* the others have the text of whole pages */
			.filter(part => part.location.includes("#"))
			.map(part => ({ ...part, low: (part.title + "\n" + part.text).toLowerCase() })));
		return index;
	}

	function points(part, words) {
		const title = part.title.toLowerCase();

		if (!words.every(word => part.low.includes(word)))
			return 0;
		return 1 + words.reduce((sum, word) => sum + (title.includes(word) ? 10 : 0) + part.low.split(word).length - 1, 0);
	}

	function shown(part, word) {
		const item = document.createElement("article"), link = document.createElement("a"), text = document.createElement("p");
		const at = Math.max(0, part.text.toLowerCase().indexOf(word) - AROUND);

		link.href = base_url + "/" + part.location;
		link.textContent = part.title;
		text.textContent = (at ? "... " : "") + part.text.slice(at, at + 2 * AROUND);
		item.append(link, text);
		return item;
	}

	async function search() {
		const words = field.value.toLowerCase().split(/\s+/).filter(word => word.length > 1);
		const parts = words.length ? await load() : [];
		const found = parts.map(part => [points(part, words), part]).filter(pair => pair[0]);

		found.sort((a, b) => b[0] - a[0]);
		list.replaceChildren(...found.slice(0, MOST).map(pair => shown(pair[1], words[0])));
		if (words.length && !found.length)
			list.textContent = "No section has all of these words.";
	}

	field.addEventListener("input", search);
	field.value = new URLSearchParams(location.search).get("q") ?? "";
	search();
})();
