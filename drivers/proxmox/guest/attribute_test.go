package guest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/guest"
	"github.com/homestak/homestak-gitops/engine/model"
)

// machine has an attribute of each form.
type machine struct {
	Cores    int      `hcl:"cores,optional" pve:"cores,always" unset:"1" priv:"VM.Config.CPU" cost:"restart"`
	Sockets  int      `hcl:"sockets,optional" default:"1" pve:"sockets" unset:"1"`
	Agent    bool     `hcl:"agent,optional" default:"true" pve:"agent.enabled"`
	Tags     []string `hcl:"tags,optional" pve:"tags" as:"tags"`
	Features []string `hcl:"features,optional" pve:"features" as:"flags"`
	Shout    string   `hcl:"shout,optional" pve:"shout" as:"loud"`
	Image    string   `hcl:"image,optional" pve:"image" cost:"data-loss"`
	Disk     int      `hcl:"disk,optional"`
}

func table() guest.AttributeTable {
	loud := guest.FormatOf(func(s string) string { return s }, func(s string) any { return s + "!" })
	return guest.AttributesOf[machine](map[string]guest.Format{"loud": loud})
}

func TestFieldsBecomeKeys(t *testing.T) {
	spec := guest.WithDefaults(new(machine))
	require.Equal(t, &machine{Sockets: 1, Agent: true}, spec)

	spec.Cores, spec.Tags, spec.Features, spec.Image, spec.Shout = 1, []string{"web", "prod"}, []string{"nesting"}, "debian", "hey"
	require.Equal(t, api.Params{
		"cores": 1, "sockets": "", "agent": "1", "tags": "web;prod", "features": "nesting=1", "shout": "hey!",
	}, table().Settings(spec), "what is said anyway goes without its key, unless its tag says always")
	require.Equal(t, api.Params{"image": "debian"}, table().Creation(spec), "a change of it would lose data")
}

func TestKeysBecomeFields(t *testing.T) {
	got := &machine{}
	table().Observe(got, map[string]string{"sockets": "2", "agent": "enabled=1,type=isa", "features": "nesting=1,fuse=0"})
	require.Equal(t, &machine{Cores: 1, Sockets: 2, Agent: true, Features: []string{"nesting"}}, got)
}

func TestAMemberLeavesTheOthers(t *testing.T) {
	all := table()
	agent := all.ByKey("agent")
	require.Same(t, agent, all.ByName("agent"))
	require.Equal(t, "enabled=1,type=isa", agent.Value(&machine{Agent: true}, "enabled=0,type=isa"))
	require.Equal(t, "type=isa", agent.Value(&machine{}, "enabled=1,type=isa"))
	require.Equal(t, model.ClassRestart, table().ByName("cores").Cost)
	require.Nil(t, table().ByName("disk"), "it is no key")
}

func TestRefusedValuesAreNamed(t *testing.T) {
	spec := &machine{Cores: 4000, Shout: "hey"}
	got := table().Refused(spec, func(key, _ string) string { return map[string]string{"cores": " at most 128\n"}[key] })
	require.Equal(t, []guest.Refusal{{Name: "cores", Text: "4000", Why: "at most 128"}}, got)
}
