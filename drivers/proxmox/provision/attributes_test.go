package provision_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/provision"
	"github.com/homestak/homestak-gitops/drivers/proxmox/proxmoxtest"
	"github.com/homestak/homestak-gitops/drivers/proxmox/pveapi"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/sim/pve"
)

// withCode are the attributes of a guest that are not one key of PVE: what they are made of,
// devices, power, notes, and what the program keeps for itself.
var withCode = []string{
	"preset", "image", "template", "recreate", "clone", "disk", "nic", "description", "power", "restart", "options", "user_data", "mark", "pending", "seed",
}

// samples are values that attributes of one type may take; the first that PVE accepts is taken.
func samples(t reflect.Type, v *pveapi.Value, unset any) []any {
	order := 3
	switch unset := unset.(type) {
	case bool:
		return []any{!unset}
	case int:
		return []any{unset + 16, unset + 1}
	case string:
		out := []any{}
		for _, e := range v.Enum {
			if e != unset {
				out = append(out, e)
			}
		}
		return append(out, "sample", "UTC", "sample.example.org")
	case []string:
		return []any{[]string{testKey}, []string{"192.0.2.1"}, []string{"nesting"}, []string{"sample"}}
	case *guest.Startup:
		return []any{&guest.Startup{Order: &order}}
	default:
		panic("no sample of " + t.String())
	}
}

// testKey is a public key.
const testKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f ops"

// Each attribute that is one key of PVE is declared by its tags alone: creation, change,
// observation, privilege, the refusal of an option and the reference page know it.
func TestAttributesAreDeclaredOnce(t *testing.T) {
	for _, name := range []string{"vm", "ct"} {
		kind := proxmox.Kinds().Get(name)
		keyed := provision.Attributes(name)
		fields := model.Fields(reflect.TypeOf(kind.New()).Elem())
		for _, f := range fields {
			known := slices.ContainsFunc(keyed, func(a guest.Attribute) bool { return a.Name == f.Name })
			require.NotEqual(t, known, slices.Contains(withCode, f.Name), "%s.%s is either one key of PVE, or has code", name, f.Name)
		}
		for _, a := range keyed {
			t.Run(name+"."+a.Name, func(t *testing.T) { declaredOnce(t, kind, a, fields) })
		}
	}
}

func declaredOnce(t *testing.T, guestKind *model.Kind, a guest.Attribute, fields []model.Field) {
	t.Helper()
	keys := map[string]*guest.OptionKeys{"vm": guest.VMKeys(), "ct": guest.CTKeys()}[guestKind.Name]
	v, known := keys.Create.Param(a.Key)
	require.True(t, known, "PVE creates no guest with %s", a.Key)
	if !a.Created {
		_, known = keys.Change.Param(a.Key)
		require.True(t, known, "PVE changes no %s", a.Key)
	}

	field := func(spec any) reflect.Value { return reflect.ValueOf(spec).Elem().Field(a.Field) }
	bare := provision.ReadConfig(guestKind.Name, map[string]string{})
	var spec any
	var text string
	for _, sample := range samples(field(bare).Type(), v, field(bare).Interface()) {
		spec = guestKind.New()
		field(spec).Set(reflect.ValueOf(sample))
		if guestKind.Name == "ct" {
			spec.(*guest.CT).NICs = []guest.CTNIC{{Name: "lan"}}
		}
		text = guest.ParameterText(provision.CreateParams(spec)[a.Key])
		back := provision.ReadConfig(guestKind.Name, map[string]string{a.Key: text})
		if keys.Refusal(a.Key, text) == "" && (!a.Read || reflect.DeepEqual(sample, field(back).Interface())) {
			break
		}
		text = ""
	}
	require.NotEmpty(t, text, "no value of it is created and read back the same")

	if a.Unset != "" && a.Unset != "0" {
		require.True(t, keys.Same(a.Key, a.Unset, ""), "%s is not what PVE does without the key", a.Unset)
	}
	if !a.Created {
		have := provision.ReadConfig(guestKind.Name, map[string]string{})
		set, _ := provision.UpdateParams(spec, have, map[string]string{}, a.Name)
		require.Equal(t, text, guest.ParameterText(set[a.Key]), "a change sets it")
		have = provision.ReadConfig(guestKind.Name, map[string]string{a.Key: text})
		set, deleted := provision.UpdateParams(bare, have, map[string]string{a.Key: text}, a.Name)
		require.True(t, set[a.Key] != nil || slices.Contains(deleted, a.Key), "a change takes it back")
	}
	if a.Read {
		require.Equal(t, []string{a.Name}, differing(spec, bare, a.Name), "the plan shows it")
	}
	if a.Read && guestKind.Name == "vm" && a.Cost == model.ClassNone && a.Privilege != "VM.Config.Cloudinit" {
		require.True(t, guest.AppliesAtOnce(a.Key), "PVE does not change it at once")
	}

	f := fields[slices.IndexFunc(fields, func(f model.Field) bool { return f.Name == a.Name })]
	require.True(t, !f.Decoded || f.Doc != "", "the reference page says nothing of it")

	optional := guestKind.New()
	reflect.ValueOf(optional).Elem().FieldByName("Options").Set(reflect.ValueOf(map[string]string{a.Key: text}))
	problems := guestKind.Resolve(&model.Resource{Spec: optional}, model.Scope{Site: &model.Site{}, Name: "web-1"})
	require.True(t, slices.ContainsFunc(problems, func(p model.Problem) bool { return p.Path == "options."+a.Key }), "an option may say it, too")

	require.NotEmpty(t, a.Privilege, "doctor asks for no privilege")
	w := proxmoxtest.New(t, pve.Config{})
	w.Node("web-1", nil)
	w.CT("ct-1", nil)
	want, found := w.Site.Want("father")
	require.Zero(t, found.Errors(), "%v", found)
	require.True(t, slices.ContainsFunc(proxmox.Needs(w.Site, want, 9), func(n kind.Need) bool {
		return n.Priv == a.Privilege && slices.Contains(n.By, map[string]string{"vm": "vm.web-1", "ct": "ct.ct-1"}[guestKind.Name])
	}), "doctor does not ask for %s", a.Privilege)
}

// differing are the attributes of one name that differ between two specs.
func differing(a, b any, name string) []string {
	out := []string{}
	value := func(spec any) any {
		got := map[string]any{}
		for _, at := range model.Attrs(spec) {
			if at.Path == name || len(at.Path) > len(name) && at.Path[:len(name)+1] == name+"." {
				got[at.Path] = at.Value
			}
		}
		return got
	}
	if !reflect.DeepEqual(value(a), value(b)) {
		out = append(out, name)
	}
	return out
}
