package proxmox

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/options"
	"github.com/homestak/homestak-gitops/drivers/proxmox/property"
	"github.com/homestak/homestak-gitops/drivers/proxmox/rights"
	"github.com/homestak/homestak-gitops/engine/model"
)

// An attribute of a guest that is one key of its configuration is declared once, by the
// tags of its field beside those that model.Kind describes:
//
//	default:"running"         what it is where the files do not say it
//	pve:"cores"               PVE's key
//	pve:"memory.current"      a member of a property string: the others stay as they are
//	pve:"onboot,always"       written also where it says what PVE does without the key
//	unset:"512"               what PVE does without the key; 0, no or "" unless given
//	as:"tags"                 the form of the text, see formatFor; by the type of the field unless given
//	priv:"VM.Config.CPU"      the privilege that PVE asks for
//	words:"the node's name"   what decides it; its own name unless given
//
// The parameters of a creation and of a change, what is read back, the privileges that
// doctor asks for, and the refusal of an option with the same key follow from them. An
// attribute whose change loses data, or that is never compared, is sent only by the request
// that creates the guest. Disks, network cards, power and notes have code of their own.

// attribute is an attribute that is one key of PVE.
type attribute struct {
	name, key, member string // in the files and in plans; in PVE
	unset             string
	always            bool
	created           bool // only the request that creates the guest has it
	read              bool // PVE shows it
	declared          bool // the files set it
	defaulted         bool // where they do not, its tag says what it is
	costs             model.Class
	priv, words       string

	index  int
	format format
}

// format translates between a field and the text of PVE.
type format struct {
	read  func(field reflect.Value, text string)
	write func(field reflect.Value) any
}

// formatted is the format of a type.
func formatted[T any](read func(text string) T, write func(T) any) format {
	return format{
		read:  func(f reflect.Value, text string) { *f.Addr().Interface().(*T) = read(text) },
		write: func(f reflect.Value) any { return write(*f.Addr().Interface().(*T)) },
	}
}

// formatFor is the format of a field, by its tag or else its type. Values that stand alone
// are sent as JSON has them.
func formatFor(t reflect.Type, as, unset string) format {
	same := func(s string) string { return s }
	switch cmp.Or(as, t.Kind().String()) {
	case "string":
		return formatted(same, func(s string) any { return s })
	case "bool":
		return formatted(func(s string) bool { return s == "1" }, func(b bool) any { return b })
	case "int":
		otherwise, _ := strconv.Atoi(unset)
		return formatted(func(s string) int { return atoi(s, otherwise) }, func(n int) any { return n })
	case "list":
		return formatted(property.SplitTags, func(list []string) any { return strings.Join(list, " ") })
	case "tags":
		return formatted(property.Tags, func(list []string) any { return strings.Join(list, ";") })
	case "keys":
		return formatted(readKeys, func(list []string) any { return property.EncodeKeys(list) })
	case "features":
		return formatted(readFeatures, func(list []string) any { return featuresText(list) })
	case "startup":
		return formatted(parseStartup, func(s *Startup) any { return s.text() })
	default:
		panic(fmt.Sprintf("attribute of type %s, as %q", t, as))
	}
}

// readKeys reads ssh keys in the order in which they are wanted.
func readKeys(text string) []string {
	keys := property.DecodeKeys(text)
	slices.Sort(keys)
	return slices.Compact(keys)
}

// attributeTable holds those attributes of a kind of guest that are one key of PVE each, in
// the order of its fields.
type attributeTable struct {
	list          []attribute
	byName, byKey map[string]*attribute
}

var (
	vmAttributes = sync.OnceValue(func() attributeTable { return readAttributes(reflect.TypeFor[VM]()) })
	ctAttributes = sync.OnceValue(func() attributeTable { return readAttributes(reflect.TypeFor[CT]()) })
)

// readAttributes reads the tags of a guest's struct.
func readAttributes(t reflect.Type) attributeTable {
	out := attributeTable{byName: map[string]*attribute{}, byKey: map[string]*attribute{}}
	for _, f := range model.Fields(t) {
		tag := t.Field(f.Index).Tag
		pve, keyed := tag.Lookup("pve")
		if !keyed {
			continue
		}
		a := attribute{
			name: f.Name, unset: tag.Get("unset"), created: !f.Compared || f.Cost == model.ClassDataLoss, read: f.Compared, declared: f.Decoded,
			costs: f.Cost, priv: tag.Get("priv"), words: cmp.Or(tag.Get("words"), f.Name), index: f.Index,
		}
		_, a.defaulted = tag.Lookup("default")
		key, when, _ := strings.Cut(pve, ",")
		a.always = when == "always"
		a.key, a.member, _ = strings.Cut(key, ".")
		a.format = formatFor(f.Type, tag.Get("as"), a.unset)
		switch {
		case f.Type.Kind() == reflect.Bool, f.Type.Kind() == reflect.Int:
			a.unset = cmp.Or(a.unset, "0")
		case f.Block:
			a.words = "a " + f.Name + " block"
		}
		out.list = append(out.list, a)
	}
	for i := range out.list {
		a := &out.list[i]
		out.byName[a.name], out.byKey[a.key] = a, a
	}
	return out
}

// value is what PVE is sent for the attribute, where it holds old so far; "" where the key is
// to go.
func (a *attribute) value(spec any, old string) any {
	val := a.format.write(reflect.ValueOf(spec).Elem().Field(a.index))
	text := plainText(val)
	if !a.always && text == a.unset {
		val, text = "", ""
	}
	if a.member != "" {
		return joined(property.Parse(old), map[string]string{a.member: text}, a.member)
	}
	return val
}

// observe writes into a spec what a configuration says.
func (as attributeTable) observe(spec any, c map[string]string) {
	v := reflect.ValueOf(spec).Elem()
	for i := range as.list {
		a := &as.list[i]
		if !a.read {
			continue
		}
		text := c[a.key]
		if a.member != "" {
			text = property.First(text, a.member)
		}
		a.format.read(v.Field(a.index), cmp.Or(text, a.unset))
	}
}

// settings are the keys that say one attribute each, as a guest has them that has none of
// them so far; "" for those that it is to be without.
func (as attributeTable) settings(spec any) api.Params { return as.params(spec, false) }

// creation are the keys that only the request has which creates the guest.
func (as attributeTable) creation(spec any) api.Params { return as.params(spec, true).OmitEmpty() }

func (as attributeTable) params(spec any, created bool) api.Params {
	p := api.Params{}
	for i := range as.list {
		if a := &as.list[i]; a.created == created {
			p[a.key] = a.value(spec, "")
		}
	}
	return p
}

// nameOf is the name of an attribute by its key of PVE; "" where none has that.
func (as attributeTable) nameOf(key string) string {
	if a := as.byKey[key]; a != nil {
		return a.name
	}
	return ""
}

// restarting gives the attribute at a path of a plan if only a restart brings it into force
// by itself; nil for all others.
func (as attributeTable) restarting(path string) *attribute {
	if a := as.byName[path]; a != nil && a.costs == model.ClassRestart {
		return a
	}
	return nil
}

// checkAttributes holds what the files declare against the API table, but for what was found
// to be wrong before.
func (r *guestResolver) checkAttributes(as attributeTable, spec any, k *options.Keys) {
	for i := range as.list {
		a := &as.list[i]
		text := plainText(a.value(spec, ""))
		found := slices.ContainsFunc(r.problems, func(p model.Problem) bool { return p.Path == a.name || strings.HasPrefix(p.Path, a.name+".") })
		if found || !a.declared || !a.read || text == "" || text == "0" && !a.defaulted { // 0 is what is not said
			continue
		}
		if why := k.Refusal(a.key, text); why != "" {
			r.errorf(a.name, fmt.Sprintf("PVE refuses %s = %q", a.name, text), "%s", strings.TrimSpace(why))
		}
	}
}

// attributeNeeds asks for what PVE asks for the attributes of a guest.
func attributeNeeds(n *rights.Needs, as attributeTable) {
	for _, a := range as.list {
		n.Guest(a.priv, a.name, a.name)
	}
}

// withDefaults writes into a new spec what its tags say where no file does.
func withDefaults[S any](spec *S) *S {
	v := reflect.ValueOf(spec).Elem()
	for i := range v.NumField() {
		text, given := v.Type().Field(i).Tag.Lookup("default")
		if !given {
			continue
		}
		switch f := v.Field(i); f.Kind() {
		case reflect.Bool:
			f.SetBool(text == "true")
		case reflect.Int:
			n, err := strconv.Atoi(text)
			if err != nil {
				panic(err)
			}
			f.SetInt(int64(n))
		default:
			f.SetString(text)
		}
	}
	return spec
}
