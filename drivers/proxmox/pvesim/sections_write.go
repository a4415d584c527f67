package pvesim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// What writes a file of sections, with the checks of PVE/SectionConfig.pm.

// settings are the options of a call, as a section keeps them, checked against the
// type of the section (check_config).
func (f *sectionFile) settings(c *call, kind string, create bool) (config, error) {
	conf, options, known := config{}, f.options(kind), props(f.props)
	beside := props(f.extra)
	if create || f.whole {
		for _, option := range slices.Sorted(maps.Keys(options)) {
			if options[option] != "?" && !c.has(option) {
				return nil, fail("missing value for required option '%s'", option)
			}
		}
	}
	for _, option := range slices.Sorted(maps.Keys(c.in)) {
		marks, there := options[option]
		switch {
		case option == f.key || beside[option] != nil || slices.Contains([]string{f.typeName(), "digest", "delete"}, option):
			continue
		case !there:
			if c.m.Params[option] != nil && c.m.Params[option].InPath {
				continue
			}
			return nil, fail("unexpected property '%s'", option)
		case !create && strings.Contains(marks, "!"):
			return nil, fail("can't change value of fixed parameter '%s'", option)
		}
		conf[option] = c.in[option]
		if v := known[option]; v != nil && v.Type == "array" {
			conf[option] = strings.Join(c.words(option), "\n")
		}
	}
	return conf, nil
}

// without removes what a call deletes (delete_from_config).
func (f *sectionFile) without(c *call, conf, set config) error {
	options := f.options(conf["type"])
	for _, option := range c.list("delete") {
		marks, there := options[option]
		switch _, both := set[option]; {
		case !there:
			return fail("no such option '%s'", option)
		case !strings.Contains(marks, "?"):
			return fail("unable to delete required option '%s'", option)
		case strings.Contains(marks, "!"):
			return fail("unable to delete fixed option '%s'", option)
		case both:
			return fail("cannot set and delete property '%s' at the same time!", option)
		}
		delete(conf, option)
	}
	return nil
}

// told is a failure of a call that writes, as PVE tells it from behind the lock of a
// file (lock_sdn_config and its like): it says what failed, and an exception about
// parameters becomes text there.
func (f *sectionFile) told(doing string, err error) error {
	e, ok := errors.AsType[*apiError](err)
	if !ok || f.failed == "" && !f.flat {
		return err
	}
	message := strings.TrimSuffix(e.message, "\n")
	switch {
	case e.errors != nil:
		message = "400 Parameter verification failed."
		for _, name := range slices.Sorted(maps.Keys(e.errors)) {
			message += "\n" + name + ": " + strings.TrimSuffix(e.errors[name], "\n")
		}
	case e.status == http.StatusForbidden, e.status == http.StatusNotFound:
		return err
	}
	if f.failed != "" {
		message = fmt.Sprintf(f.failed, cmp.Or(f.verbs[doing], doing)) + ": " + message
	}
	return fail("%s", message)
}

// locked is the lock of the file: without quorum nobody gets it.
func (f *sectionFile) locked(w *world) error {
	if f.domain != "" && w.v9() {
		return w.needLock("domain-" + f.domain)
	}
	return w.needLock("file-" + f.lock)
}

func (f *sectionFile) apiCreate(w *world, c *call) (any, error) {
	id, kind := c.in[f.key], c.in[f.typeName()]
	if f.only != "" {
		kind = f.only
	}
	if f.idOf != nil {
		id = f.idOf(w, c)
	}
	if f.guard != nil && f.write == nil { // Else the rule of the call said it.
		if err := f.guard(c, id, map[string]any{}, true); err != nil {
			return nil, err
		}
	}
	conf, wrong := f.settings(c, kind, true)
	if wrong != nil && f.early {
		return nil, wrong
	}
	if f.domain != "" { // Looked at before the folder of these files is made.
		if err := w.needQuorum(); err != nil {
			return nil, err
		}
	}
	if err := f.locked(w); err != nil {
		return nil, f.told("create", err)
	}
	if _, there := w.sectionsOf(f)[id]; there && (wrong == nil || f.early) {
		return nil, f.told("create", fail(f.twice, id))
	}
	if wrong != nil {
		return nil, f.told("create", wrong)
	}
	conf["type"] = kind
	if f.check != nil {
		if err := f.check(w, c, id, conf, nil); err != nil {
			return nil, f.told("create", err)
		}
	}
	w.keep(f, id, conf)
	return nil, nil
}

func (f *sectionFile) apiUpdate(w *world, c *call) (any, error) {
	id := f.section(c)
	old, there := w.sectionsOf(f)[id]
	if f.guard != nil && there {
		if err := f.guard(c, id, f.typed(old), true); err != nil {
			return nil, err
		}
	}
	conf, err := f.changed(w, c, id, old, there)
	if err != nil {
		return nil, f.told("update", err)
	}
	w.keep(f, id, conf)
	return nil, nil
}

// changed is a section after a change, if it may be so.
func (f *sectionFile) changed(w *world, c *call, id string, old config, there bool) (config, error) {
	if err := f.locked(w); err != nil {
		return nil, err
	}
	if err := c.modified(w.sectionDigest(f)); err != nil {
		return nil, err
	}
	if !there {
		return nil, absent(cmp.Or(f.gone, f.missing), id)
	}
	set, err := f.settings(c, old["type"], false)
	if err != nil {
		return nil, err
	}
	conf := maps.Clone(old)
	if err := f.without(c, conf, set); err != nil {
		return nil, err
	}
	maps.Copy(conf, set)
	if f.check != nil {
		err = f.check(w, c, id, conf, old)
	}
	return conf, err
}

func (f *sectionFile) apiDelete(w *world, c *call) (any, error) {
	id := f.section(c)
	conf, there := w.sectionsOf(f)[id]
	if f.guard != nil && there {
		if err := f.guard(c, id, f.typed(conf), true); err != nil {
			return nil, err
		}
	}
	err := f.locked(w)
	if err == nil && !there && !f.missingIsGone {
		err = absent(cmp.Or(f.gone, f.missing), id)
		if f.undeletable != "" {
			err = fail("%s", f.undeletable)
		}
	}
	if err == nil && there && f.drop != nil {
		err = f.drop(w, c, id)
	}
	if err != nil {
		return nil, f.told("delete", err)
	}
	delete(w.sectionsOf(f), id)
	if f.after != nil {
		f.after(w)
	}
	return nil, nil
}

// keep writes a section; the file has no line for an option without a value
// (format_config_line).
func (w *world) keep(f *sectionFile, id string, conf config) {
	maps.DeleteFunc(conf, func(_, value string) bool { return value == "" })
	w.sectionsOf(f)[id] = conf
}
