package core

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// Writing a file of sections, with the checks of PVE/SectionConfig.pm.

// settings are the options of a call, as a section keeps them, checked against the
// type of the section (check_config).
func (f *SectionFile) settings(c *Call, kind string, create bool) (perl.Config, error) {
	conf, options, known := perl.Config{}, f.Options(kind), Props(f.Props)
	beside := Props(f.Extra)
	if create || f.Whole {
		for _, option := range slices.Sorted(maps.Keys(options)) {
			if options[option] != "?" && !c.Has(option) {
				return nil, perl.Fail("missing value for required option '%s'", option)
			}
		}
	}
	for _, option := range slices.Sorted(maps.Keys(c.In)) {
		flags, there := options[option]
		switch {
		case option == f.Key || beside[option] != nil || slices.Contains([]string{f.TypeName(), "digest", "delete"}, option):
			continue
		case !there:
			if c.M.Params[option] != nil && c.M.Params[option].InPath {
				continue
			}
			return nil, perl.Fail("unexpected property '%s'", option)
		case !create && strings.Contains(flags, "!"):
			return nil, perl.Fail("can't change value of fixed parameter '%s'", option)
		}
		conf[option] = c.In[option]
		if v := known[option]; v != nil && v.Type == "array" {
			conf[option] = strings.Join(c.Words(option), "\n")
		}
	}
	return conf, nil
}

// without removes what a call deletes (delete_from_config).
func (f *SectionFile) without(c *Call, conf, set perl.Config) error {
	options := f.Options(conf["type"])
	for _, option := range c.List("delete") {
		flags, there := options[option]
		switch _, both := set[option]; {
		case !there:
			return perl.Fail("no such option '%s'", option)
		case !strings.Contains(flags, "?"):
			return perl.Fail("unable to delete required option '%s'", option)
		case strings.Contains(flags, "!"):
			return perl.Fail("unable to delete fixed option '%s'", option)
		case both:
			return perl.Fail("cannot set and delete property '%s' at the same time!", option)
		}
		delete(conf, option)
	}
	return nil
}

// reported is a failure of a call that writes, as PVE reports it from behind the lock of a
// file (lock_sdn_config and its like): it says what failed, and an exception about
// parameters becomes text there.
func (f *SectionFile) reported(doing string, err error) error {
	e, ok := errors.AsType[*perl.APIError](err)
	if !ok || f.Failed == "" && !f.Flat {
		return err
	}
	message := strings.TrimSuffix(e.Message, "\n")
	switch {
	case e.Errors != nil:
		message = "400 Parameter verification failed."
		for _, name := range slices.Sorted(maps.Keys(e.Errors)) {
			message += "\n" + name + ": " + strings.TrimSuffix(e.Errors[name], "\n")
		}
	case e.Status == http.StatusForbidden, e.Status == http.StatusNotFound:
		return err
	}
	if f.Failed != "" {
		message = fmt.Sprintf(f.Failed, cmp.Or(f.Verbs[doing], doing)) + ": " + message
	}
	return perl.Fail("%s", message)
}

// locked is the lock of the file, which fails without quorum.
func (f *SectionFile) locked(w *World) error {
	if f.Domain != "" && w.V9() {
		return w.NeedLock("domain-" + f.Domain)
	}
	return w.NeedLock("file-" + f.Lock)
}

// APICreate is POST of a new section.
func (f *SectionFile) APICreate(w *World, c *Call) (any, error) {
	id, kind := c.In[f.Key], c.In[f.TypeName()]
	if f.Only != "" {
		kind = f.Only
	}
	if f.IDOf != nil {
		id = f.IDOf(w, c)
	}
	if f.Guard != nil && f.Write == nil { // Else the rule of the call said it.
		if err := f.Guard(c, id, map[string]any{}, true); err != nil {
			return nil, err
		}
	}
	conf, wrong := f.settings(c, kind, true)
	if wrong != nil && f.Early {
		return nil, wrong
	}
	if f.Domain != "" { // Looked at before the folder of these files is made.
		if err := w.NeedQuorum(); err != nil {
			return nil, err
		}
	}
	if err := f.locked(w); err != nil {
		return nil, f.reported("create", err)
	}
	if _, there := f.Sections(w)[id]; there && (wrong == nil || f.Early) {
		return nil, f.reported("create", perl.Fail(f.Twice, id))
	}
	if wrong != nil {
		return nil, f.reported("create", wrong)
	}
	conf["type"] = kind
	if f.Check != nil {
		if err := f.Check(w, c, id, conf, nil); err != nil {
			return nil, f.reported("create", err)
		}
	}
	keep(w, f, id, conf)
	return nil, nil
}

// APIUpdate is PUT of a section.
func (f *SectionFile) APIUpdate(w *World, c *Call) (any, error) {
	id := f.section(c)
	old, there := f.Sections(w)[id]
	if f.Guard != nil && there {
		if err := f.Guard(c, id, f.Typed(old), true); err != nil {
			return nil, err
		}
	}
	conf, err := f.changed(w, c, id, old, there)
	if err != nil {
		return nil, f.reported("update", err)
	}
	keep(w, f, id, conf)
	return nil, nil
}

// changed is a section after a change, if it may be so.
func (f *SectionFile) changed(w *World, c *Call, id string, old perl.Config, there bool) (perl.Config, error) {
	if err := cmp.Or(f.locked(w), c.Modified(f.Digest(w))); err != nil {
		return nil, err
	}
	if !there {
		return nil, absent(cmp.Or(f.Gone, f.Missing), id)
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
	if f.Check != nil {
		err = f.Check(w, c, id, conf, old)
	}
	return conf, err
}

// APIDelete is DELETE of a section.
func (f *SectionFile) APIDelete(w *World, c *Call) (any, error) {
	id := f.section(c)
	conf, there := f.Sections(w)[id]
	if f.Guard != nil && there {
		if err := f.Guard(c, id, f.Typed(conf), true); err != nil {
			return nil, err
		}
	}
	err := f.locked(w)
	if err == nil && !there && !f.MissingIsGone {
		err = absent(cmp.Or(f.Gone, f.Missing), id)
		if f.Undeletable != "" {
			err = perl.Fail("%s", f.Undeletable)
		}
	}
	if err == nil && there && f.Drop != nil {
		err = f.Drop(w, c, id)
	}
	if err != nil {
		return nil, f.reported("delete", err)
	}
	delete(f.Sections(w), id)
	if f.After != nil {
		f.After(w)
	}
	return nil, nil
}

// keep writes a section; the file has no line for an option without a value
// (format_config_line).
func keep(w *World, f *SectionFile, id string, conf perl.Config) {
	maps.DeleteFunc(conf, func(_, value string) bool { return value == "" })
	f.Sections(w)[id] = conf
}
