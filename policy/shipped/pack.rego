# What the packs share. A pack is on where the site has a block for it: pack "naming" {}.
package homestak.packs

# words are those of a setting, separated by spaces.
words(text) := {word | some word in split(text, " "); word != ""}

address(name) := sprintf("%s.%s", [input.site.nodes[name].type, name])

# settings of a pack, by name; undefined where it is off.
settings[name] := object.get(pack, "settings", {}) if some name, pack in input.site.packs

role(node) := object.get(node, "role", null)

# on reports whether a rule of a pack counts: its pack is on, and selects it, or none.
on(pack, rule) if rule in selected[pack]

on(pack, _) if count(selected[pack]) == 0

selected[name] := object.get(pack, "rules", []) if some name, pack in input.site.packs
