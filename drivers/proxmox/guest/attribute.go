package guest

// Attributes map the fields of a struct to keys of a guest's configuration in Proxmox VE. The tags of a field
// declare one, in addition to those that model.Kind describes:
//
//	default:"running"         the value if the files have none
//	pve:"cores"               PVE's key
//	pve:"memory.current"      a member of a property string; the others are kept
//	pve:"onboot,always"       written even if the value is PVE's default
//	unset:"512"               PVE's default for the key; 0, no or "" unless given
//	as:"tags"                 the format of the value, here or in the formats given to attributesOf; by the type of the field unless given
//	priv:"VM.Config.CPU"      the privilege that PVE requires
//	words:"the node's name"   where the value comes from, for messages; the field's own name unless given
//
// They determine the parameters of create and update, how an attribute is read back, the privileges that doctor
// checks, and the rejection of an option with the same key. An attribute whose change loses data, or that is never
// compared, is only sent when the guest is created.

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/engine/model"
)

// Attribute is an attribute that is one key, or one member of a key.
type Attribute struct {
	Name      string // in the files and in plans
	Key       string // in Proxmox VE
	Unset     string // what holds without the key
	Created   bool   // only the request that creates the guest has it
	Read      bool   // Proxmox VE shows it
	Cost      model.Class
	Privilege string
	Words     string // what decides it
	Field     int    // its index in the struct

	member    string
	always    bool
	declared  bool // the files set it
	boolean   bool
	defaulted bool // where they do not, its tag says what it is
	format    format
}

// format translates between a field and the text of PVE.
type format struct {
	read  func(field reflect.Value, text string)
	write func(field reflect.Value) any
}

// formatOf is the format of fields of a type, by what reads the text of a key, "" for a key
// that is not there, and what gives the value to send.
func formatOf[T any](read func(text string) T, write func(T) any) format {
	return format{
		read:  func(f reflect.Value, text string) { *f.Addr().Interface().(*T) = read(text) },
		write: func(f reflect.Value) any { return write(*f.Addr().Interface().(*T)) },
	}
}

// formatFor is the format of a field, by its tag or else its type. Values that stand alone
// are sent as JSON has them.
func formatFor(t reflect.Type, as, unset string, further map[string]format) format {
	same := func(s string) string { return s }
	switch cmp.Or(as, t.Kind().String()) {
	case "string":
		return formatOf(same, func(s string) any { return s })
	case "bool":
		return formatOf(func(s string) bool { return s == "1" }, func(b bool) any { return b })
	case "int":
		otherwise, _ := strconv.Atoi(unset)
		return formatOf(func(s string) int {
			if n, err := strconv.Atoi(s); err == nil {
				return n
			}
			return otherwise
		}, func(n int) any { return n })
	case "list":
		return formatOf(api.SplitTags, func(list []string) any { return strings.Join(list, " ") })
	case "tags":
		return formatOf(api.NormalTags, func(list []string) any { return strings.Join(list, ";") })
	case "keys":
		return formatOf(readKeys, func(list []string) any { return api.EncodeSSHKeys(list) })
	case "flags":
		return formatOf(propertyFlags, func(list []string) any { return encodeFlags(list) })
	default:
		f, known := further[as]
		if !known {
			panic(fmt.Sprintf("attribute of type %s, as %q", t, as))
		}
		return f
	}
}

// readKeys reads ssh keys in the order in which they are wanted.
func readKeys(text string) []string {
	keys := api.DecodeSSHKeys(text)
	slices.Sort(keys)
	return slices.Compact(keys)
}

// AttributeTable holds the attributes of a struct that are one key each.
type AttributeTable struct {
	All           []Attribute // in the order of the fields
	byName, byKey map[string]*Attribute
}

// ByName gives the attribute of a name; nil for none.
func (as AttributeTable) ByName(name string) *Attribute { return as.byName[name] }

// ByKey gives an attribute of a key of Proxmox VE; nil for none.
func (as AttributeTable) ByKey(key string) *Attribute { return as.byKey[key] }

// attributesOf reads the tags of a struct. formats are further forms of text that a tag may name. A
// field without a form is a mistake of the program, and panics.
func attributesOf[S any](formats map[string]format) AttributeTable {
	t := reflect.TypeFor[S]()
	out := AttributeTable{byName: map[string]*Attribute{}, byKey: map[string]*Attribute{}}
	for _, f := range model.Fields(t) {
		tag := t.Field(f.Index).Tag
		pve, keyed := tag.Lookup("pve")
		if !keyed {
			continue
		}
		a := Attribute{
			Name: f.Name, Unset: tag.Get("unset"), Created: !f.Compared || f.Cost == model.ClassDataLoss, Read: f.Compared, declared: f.Decoded,
			Cost: f.Cost, Privilege: tag.Get("priv"), Words: cmp.Or(tag.Get("words"), f.Name), Field: f.Index,
		}
		_, a.defaulted = tag.Lookup("default")
		key, when, _ := strings.Cut(pve, ",")
		a.always = when == "always"
		a.Key, a.member, _ = strings.Cut(key, ".")
		a.format = formatFor(f.Type, tag.Get("as"), a.Unset, formats)
		a.boolean = f.Type.Kind() == reflect.Bool
		switch {
		case a.boolean, f.Type.Kind() == reflect.Int:
			a.Unset = cmp.Or(a.Unset, "0")
		case f.Block:
			a.Words = "a " + f.Name + " block"
		}
		out.All = append(out.All, a)
	}
	for i := range out.All {
		a := &out.All[i]
		out.byName[a.Name], out.byKey[a.Key] = a, a
	}
	return out
}

// Value returns the text that Proxmox VE gets for the attribute of a spec, a pointer to the struct. old is
// the text of the key so far; the value is "" where the key is to go.
func (a *Attribute) Value(spec any, old string) any {
	val := a.format.write(reflect.ValueOf(spec).Elem().Field(a.Field))
	text := ParameterText(val)
	if !a.always && text == a.Unset {
		val, text = "", ""
	}
	if a.member != "" {
		return api.ParseProperty(old).With(map[string]string{a.member: text}, a.member)
	}
	return val
}

// Observe writes into a spec what a configuration says.
func (as AttributeTable) Observe(spec any, c map[string]string) {
	v := reflect.ValueOf(spec).Elem()
	for i := range as.All {
		a := &as.All[i]
		if !a.Read {
			continue
		}
		text := c[a.Key]
		if a.member != "" {
			text = api.PropertyFirst(text, a.member)
		}
		a.format.read(v.Field(a.Field), cmp.Or(text, a.Unset))
	}
}

// Settings are the keys as a guest gets them that has none of them so far; "" for those that it
// is to be without.
func (as AttributeTable) Settings(spec any) api.Params { return as.params(spec, false) }

// Creation are the keys that only the request has which creates the guest.
func (as AttributeTable) Creation(spec any) api.Params { return as.params(spec, true).OmitEmpty() }

func (as AttributeTable) params(spec any, created bool) api.Params {
	p := api.Params{}
	for i := range as.All {
		if a := &as.All[i]; a.Created == created {
			p[a.Key] = a.Value(spec, "")
		}
	}
	return p
}

// Refusal is why Proxmox VE would not take the value of an attribute.
type Refusal struct{ Name, Text, Why string }

// Refused lists the declared values of a spec that Proxmox VE would not take, by what it
// says of a key and its text ("" for fine).
func (as AttributeTable) Refused(spec any, refusal func(key, text string) string) []Refusal {
	var out []Refusal
	for i := range as.All {
		a := &as.All[i]
		if !a.declared || !a.Read || a.boolean { // yes and no are taken everywhere
			continue
		}
		text := ParameterText(a.Value(spec, ""))
		if text == "" || text == "0" && !a.defaulted { // 0 is what is not said
			continue
		}
		if why := refusal(a.Key, text); why != "" {
			out = append(out, Refusal{a.Name, text, strings.TrimSpace(why)})
		}
	}
	return out
}

// ParameterText is a parameter as Proxmox VE shows it.
func ParameterText(v any) string {
	switch v {
	case true:
		return "1"
	case false:
		return "0"
	default:
		return fmt.Sprint(v)
	}
}

// WithDefaults writes into a new spec what its tags say where no file does.
func WithDefaults[S any](spec *S) *S {
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
