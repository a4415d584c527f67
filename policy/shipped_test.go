package policy_test

import (
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
	"github.com/homestak/homestak-gitops/policy"
)

// The rules themselves are tested in Rego, beside them. Here they judge real sites and
// plans: what they read is there, under that name, and their findings have places.

func TestSiteRules(t *testing.T) {
	s := set(t)
	for _, c := range []struct {
		name   string
		change func(*model.Site)
		want   []string
	}{
		{"a site in order", func(*model.Site) {}, nil},
		{
			"production with passwords", func(s *model.Site) { s.Postures["prod"].SSH.PasswordAuthentication = "yes" },
			[]string{"postures.hcl:20:3: error: posture prod lets users log in with a password [policy]"},
		},
		{
			"production by network", func(s *model.Site) { s.Postures["prod"].Auth.Method = "network" },
			[]string{"postures.hcl:20:3: error: posture prod accepts the network as identity [policy]"},
		},
		{
			"production of which nothing is known", func(s *model.Site) { s.Postures["prod"] = &model.Posture{Name: "prod"} },
			[]string{
				"error: posture prod accepts the network as identity [policy]",
				"error: posture prod lets users log in with a password [policy]",
			},
		},
		{
			"a name outside of the pattern", func(s *model.Site) { s.Naming.Pattern = "web-[0-9]+" },
			[]string{"manifests/web.hcl:25:3: error: name cache breaks the site's naming rule web-[0-9]+ [policy]"},
		},
		{
			"a VMID outside of the ranges", func(s *model.Site) { s.VMIDRanges = s.VMIDRanges[1:] },
			[]string{"manifests/web.hcl:5:3: error: VMID 10001 of web-1 is outside of the site's ranges [policy]"},
		},
		{"no ranges, no pattern", func(s *model.Site) { s.VMIDRanges, s.Naming = nil, nil }, nil},
		{"recipes are not deployed", func(s *model.Site) { s.Manifests["recipe"].Nodes[0].VMID = 7 }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			site := site()
			c.change(site)
			require.Equal(t, c.want, checkSite(t, s, site))
		})
	}
}

func TestPlanRules(t *testing.T) {
	s := set(t)
	site := site()
	require.Empty(t, lines(s.Plan(t.Context(), site, planned(t, site), request())))

	site.Manifests["web"].Nodes[1].Resource.Guest.Choose = []model.VMIDRange{{From: 500, To: 600}}
	require.Equal(t, []string{"manifests/web.hcl:25:3: error: ct.cache would be created with VMID 500, outside of the site's ranges [policy]"},
		lines(s.Plan(t.Context(), site, planned(t, site), request())))
}

// inSync is what the host holds when it is as the site says.
func inSync(s *model.Site) []*model.Resource {
	var out []*model.Resource
	for _, n := range s.Manifests["web"].Nodes {
		r, _ := s.Resolve(n.Resource, s.Hosts["father"], n)
		g := *r.Guest
		if r.Guest = &g; g.VMID == 0 {
			g.VMID = 10002
		}
		r.At = diag.Range{}
		out = append(out, r)
	}
	return out
}

// extras are guests that the site does not know any more.
func extras(n int) []*model.Resource {
	var out []*model.Resource
	for i := range n {
		out = append(out, guest(fmt.Sprintf("old-%d", i+1), 10100+i, false))
	}
	return out
}

func TestGuard(t *testing.T) {
	s := set(t)
	five := 5
	for _, c := range []struct {
		name    string
		site    func(*model.Site)
		have    []*model.Resource // beside what the site wants
		request func(*policy.Request)
		want    []string
	}{
		{name: "nothing to remove"},
		{name: "three of twelve", have: extras(3)},
		{
			name: "four of twelve", have: extras(4),
			want: []string{"error: the plan removes 4 of 12 owned guests, at most 3 in one pass [guard]"},
		},
		{
			name: "half of them", have: extras(3), request: func(r *policy.Request) { r.OwnedCount = 5 },
			want: []string{"error: the plan removes 3 of 5 owned guests, at most 2 in one pass [guard]"},
		},
		{name: "the site allows more", site: func(s *model.Site) { s.MaxDeletes = &five }, have: extras(5)},
		{name: "a grant", have: extras(9), request: func(r *policy.Request) { r.AllowDeletes = 9 }},
		{name: "an explicit destroy", have: extras(9), request: func(r *policy.Request) { r.Destroy = true }},
		{
			name: "an emptied site", have: extras(2), site: func(s *model.Site) { s.Manifests = map[string]*model.Manifest{} },
			want: []string{
				"error: ct.cache is protected, and the plan would delete it [guard]",
				"error: the plan removes 4 of 12 owned guests, at most 3 in one pass [guard]",
				"error: the site declares no node at all, and the plan removes 4 of 12 owned guests [guard]",
			},
		},
		{
			name: "a protected guest", have: []*model.Resource{guest("vault", 10200, true)},
			want: []string{"error: vm.vault is protected, and the plan would delete it [guard]"},
		},
		{
			name: "a protected guest, asked for", have: []*model.Resource{guest("vault", 10200, true)},
			request: func(r *policy.Request) { r.Destroy, r.AllowDeletes = true, 9 },
			want:    []string{"error: vm.vault is protected, and the plan would delete it [guard]"},
		},
		{
			name: "a guest that is protected from now on is replaced",
			site: func(s *model.Site) {
				v := s.Manifests["web"].Nodes[0].Resource.Spec.(*VM)
				v.Image, v.Protection = "debian-13", true
			},
			want: []string{"manifests/web.hcl:5:3: error: vm.web-1 is protected, and the plan would replace it [guard]"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			site, r := site(), request()
			have := append(inSync(site), c.have...)
			if c.site != nil {
				c.site(site)
			}
			if c.request != nil {
				c.request(&r)
			}
			require.Equal(t, c.want, lines(s.Plan(t.Context(), site, planned(t, site, have...), r)))
		})
	}
}

func TestEveryRefusalNamesTheWayOn(t *testing.T) {
	s := set(t)
	site := site()
	found, _ := s.Plan(t.Context(), site, planned(t, site, append(inSync(site), extras(4)...)...), request())
	require.Len(t, found, 1)
	require.Equal(t, diag.Finding{
		Severity: diag.Error, Source: diag.FromGuard, Rule: "deletion-cap",
		Summary: "the plan removes 4 of 12 owned guests, at most 3 in one pass",
		Detail: `If this is intended: a commit with the trailer "Allow-Deletes: 4", or apply --allow-deletes 4.
(rule deletion-cap, shipped with this program, package homestak.guard)`,
	}, found[0])

	site.Postures["prod"].SSH.PasswordAuthentication = "yes"
	found, _ = s.Site(t.Context(), site, request())
	require.Len(t, found, 1)
	require.Equal(t, diag.Finding{
		Severity: diag.Error, Source: diag.FromPolicy, Address: "posture.prod", Rule: "prod-no-password", At: at("postures.hcl", 20),
		Summary: "posture prod lets users log in with a password",
		Detail: `Write password_authentication = "no" in its ssh block, or give the posture a name that does not begin with prod.
(rule prod-no-password, shipped with this program, package homestak.site)`,
	}, found[0])
}

// A change window is no shipped rule: this is how a site writes one.
func TestAWindowOfASite(t *testing.T) {
	s := set(t, "policy/window.rego", `package homestak.guard

deny contains {
	"rule": "window",
	"message": sprintf("it is %02d:%02d in Berlin, outside working hours: changes wait until 22:00", [hour, minute]),
	"fix": "Wait, or run apply yourself.",
} if {
	input.unattended
	count(input.plan.steps) > 0
	[hour, minute, _] := time.clock([time.parse_rfc3339_ns(input.now), "Europe/Berlin"])
	hour < 22
}
`)
	site, r := site(), request()
	p := planned(t, site)
	require.Equal(t, []string{"error: it is 04:04 in Berlin, outside working hours: changes wait until 22:00 [guard]"}, lines(s.Plan(t.Context(), site, p, r)))
	r.Now = r.Now.Add(18 * 3600e9)
	require.Empty(t, lines(s.Plan(t.Context(), site, p, r)))
	r.Now, r.Unattended = request().Now, false
	require.Empty(t, lines(s.Plan(t.Context(), site, p, r)))
}

// Rules may read anything that they are given, in any order, at the same time.
func TestASetIsAskedByManyAtOnce(t *testing.T) {
	s := set(t, "policy/all.rego", `package homestak.site
warn contains sprintf("%d values", [n]) if n := count([v | walk(input, [_, v])])
`)
	site := site()
	want := checkSite(t, s, site)
	require.Len(t, want, 1)
	answers := make(chan []string)
	for range 8 {
		go func() { answers <- lines(s.Site(t.Context(), site, request())) }()
		go func() {
			d := s.Authorize(t.Context(), policy.AuthInput{Path: "/spec/web-1", Identity: "web-1", Posture: site.Postures["dev"], Remote: "10.0.0.1"})
			answers <- []string{fmt.Sprint(d.Allow)}
		}()
	}
	for range 16 {
		if a := <-answers; a[0] != "true" {
			require.Equal(t, want, a)
		}
	}
}

func TestAPlanIsNeeded(t *testing.T) {
	require.Equal(t, []string{"error: there is no plan to check [policy]"}, lines(set(t).Plan(t.Context(), site(), nil, request())))
	require.Equal(t, []string{"error: there is no site to check [policy]"}, lines(set(t).Site(t.Context(), nil, request())))
	require.Equal(t, []string{"error: there is no site to check [policy]"}, lines(set(t).Plan(t.Context(), nil, &plan.Plan{}, request())))
}

// good is a request that the shipped rules allow.
func good() policy.AuthInput {
	return policy.AuthInput{
		Method: "GET", Path: "/spec/web-1", Identity: "web-1", Remote: "10.0.12.5:40112", Posture: site().Postures["prod"],
		Credential: policy.Credential{Kind: policy.NodeToken, Valid: true, Identity: "web-1"},
	}
}

func TestAuthorize(t *testing.T) {
	allowed := policy.Decision{Allow: true}
	refused := func(code int, reason string) policy.Decision { return policy.Decision{Code: code, Reason: reason} }
	dev := site().Postures["dev"]
	for _, c := range []struct {
		name   string
		change func(*policy.AuthInput)
		want   policy.Decision
	}{
		{"a node's token", func(*policy.AuthInput) {}, allowed},
		{"nothing shown", func(in *policy.AuthInput) { in.Credential = policy.Credential{} }, refused(401, "a credential is required")},
		{"not valid", func(in *policy.AuthInput) { in.Credential.Valid = false }, refused(401, "the credential is not valid")},
		{"of another", func(in *policy.AuthInput) { in.Credential.Identity = "web-2" }, refused(403, "the credential belongs to another node")},
		{"not valid, and of another", func(in *policy.AuthInput) { in.Credential.Valid, in.Credential.Identity = false, "web-2" }, refused(401, "the credential is not valid")},
		{"of another kind", func(in *policy.AuthInput) { in.Credential = policy.Credential{Kind: policy.SiteToken, Valid: true} }, refused(403, "a credential of kind site_token is not accepted here")},
		{"provisioning", func(in *policy.AuthInput) { in.Credential.Kind, in.Posture = policy.Provisioning, nil }, allowed},
		{"network", func(in *policy.AuthInput) { in.Credential, in.Posture = policy.Credential{}, dev }, allowed},
		{"network, IPv4 in IPv6", func(in *policy.AuthInput) {
			in.Credential, in.Posture, in.Remote = policy.Credential{}, dev, "[::ffff:10.1.2.3]:80"
		}, allowed},
		{"network, from elsewhere", func(in *policy.AuthInput) {
			in.Credential, in.Posture, in.Remote = policy.Credential{}, dev, "192.168.1.1"
		}, refused(401, "a credential is required")},
		{"network, from nowhere", func(in *policy.AuthInput) { in.Credential, in.Posture, in.Remote = policy.Credential{}, dev, "@" }, refused(401, "a credential is required")},
		{"network, for the bundle", func(in *policy.AuthInput) {
			in.Credential, in.Posture, in.Path = policy.Credential{}, dev, "/config/web-1"
		}, refused(401, "a credential is required")},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := good()
			c.change(&in)
			require.Equal(t, c.want, set(t).Authorize(t.Context(), in))
		})
	}
}

func TestASiteAddsToAuth(t *testing.T) {
	for _, c := range []struct {
		name, body string
		change     func(*policy.AuthInput)
		want       policy.Decision
	}{
		{"an allow", `allow if startswith(input.path, "/public/")`, func(in *policy.AuthInput) { in.Path, in.Credential = "/public/x", policy.Credential{} }, policy.Decision{Allow: true}},
		{"a deny wins", `deny contains "not today" if input.identity == "web-1"`, nil, policy.Decision{Code: 403, Reason: "not today"}},
		{"a code", `deny contains {"message": "who are you", "code": 401} if true`, nil, policy.Decision{Code: 401, Reason: "who are you"}},
		{"of two the lower code", "deny contains {\"message\": \"b\", \"code\": 403} if true\ndeny contains {\"message\": \"a\", \"code\": 401} if true", nil, policy.Decision{Code: 401, Reason: "a"}},
		{"a deny of no shape", `deny contains 7 if true`, nil, policy.Decision{Code: 403, Reason: "a rule of homestak.auth denies, but its entry is neither a string nor an object with a message"}},
		{"an allow of no shape", `allow := "yes" if input.identity == "web-2"`, func(in *policy.AuthInput) { in.Identity, in.Credential = "web-2", policy.Credential{} }, policy.Decision{Code: 401, Reason: "a credential is required"}},
		{"a default", `default allow := false`, nil, policy.Decision{Allow: true}},
		{"an error", `allow if to_number(input.path) == 3`, nil, policy.Decision{Code: 403, Reason: `policy/x.rego denies (rule allow): to_number: strconv.ParseFloat: parsing "/spec/web-1": invalid syntax`}},
		{"a contradiction", `allow := false if input.identity == "web-1"`, nil, policy.Decision{Code: 403, Reason: "policy/x.rego denies (rule allow): rule data.homestak.auth.allow produced conflicting values"}},
		{"control characters", `deny contains "a\u001b[31m\nb" if true`, nil, policy.Decision{Code: 403, Reason: "a?[31m b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := good()
			if c.change != nil {
				c.change(&in)
			}
			s, found := policy.Compile(t.Context(), policy.Options{Site: tree("policy/x.rego", "package homestak.auth\n"+c.body+"\n")})
			require.Empty(t, lines(found))
			require.Equal(t, c.want, s.Authorize(t.Context(), in))
		})
	}
}

// The page shows what homestak.auth is for: each field of its input, and a rule that does what it says.
func TestN17ThePageOfAuth(t *testing.T) {
	page, err := os.ReadFile("../docs/policy.md")
	require.NoError(t, err)
	require.NotContains(t, string(page), "not used yet")
	for field := range good().Document() {
		require.Contains(t, string(page), `"`+field+`":`)
	}
	_, rule, found := strings.Cut(string(page), "\n    package homestak.auth\n")
	require.True(t, found)
	rule, _, _ = strings.Cut(rule, "\n    }\n")
	s, problems := policy.Compile(t.Context(), policy.Options{Site: tree("policy/x.rego", "package homestak.auth\n"+rule+"\n}\n")})
	require.Empty(t, lines(problems))
	in := good()
	in.Remote = "192.0.2.17:40000"
	require.True(t, s.Authorize(t.Context(), in).Allow)
	in.Remote = "198.51.100.1:40000"
	require.Equal(t, policy.Decision{Code: 403, Reason: "specs are for the servers' network only"}, s.Authorize(t.Context(), in))
	in.Remote = ""
	require.False(t, s.Authorize(t.Context(), in).Allow)
}

// The other rules of the page compile, and its test passes.
func TestThePageOfPolicies(t *testing.T) {
	page, err := os.ReadFile("../docs/policy.md")
	require.NoError(t, err)
	block := func(first string) string {
		_, text, found := strings.Cut(string(page), "\n    "+first+"\n")
		require.True(t, found, first)
		var b strings.Builder
		for line := range strings.Lines(first + "\n" + text) {
			if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "    ") && b.Len() > 0 {
				break
			}
			b.WriteString(strings.TrimPrefix(line, "    "))
		}
		return b.String()
	}
	s, found := policy.Compile(t.Context(), policy.Options{Site: tree(
		"policy/owner.rego", block("# policy/owner.rego"), "policy/owner_test.rego", block("# policy/owner_test.rego"), "policy/window.rego", block("package homestak.guard"),
	)})
	require.Empty(t, lines(found))
	tally, err := s.Test(t.Context(), t.Output(), policy.TestOptions{Match: regexp.MustCompile("owner")})
	require.NoError(t, err)
	require.Equal(t, 1, tally.Passed)
	require.True(t, tally.OK())
}

func TestDecisionsAreOfTheirRequestAlone(t *testing.T) {
	s := set(t)
	for range 2 {
		require.True(t, s.Authorize(t.Context(), good()).Allow)
		for _, change := range []func(*policy.AuthInput){
			func(in *policy.AuthInput) { in.Identity = "web-2" },
			func(in *policy.AuthInput) { in.Credential.Valid = false },
			func(in *policy.AuthInput) { in.Credential.Kind = policy.SiteToken },
			func(in *policy.AuthInput) { in.Posture = nil },
		} {
			in := good()
			change(&in)
			require.False(t, s.Authorize(t.Context(), in).Allow)
		}
	}
	in := good()
	in.Identity = strings.Repeat("x", 1000)
	in.Credential.Identity = in.Identity
	for i := range 200 {
		in.Method = fmt.Sprint(i)
		require.True(t, s.Authorize(t.Context(), in).Allow)
		if i > 20 {
			in.Identity, in.Credential.Identity, in.Path = "web-1", "web-1", fmt.Sprintf("/spec/%d", i)
		}
	}
}

// What was decided for one of 10,000 nodes is not decided again when all the others have asked.
func TestDecisionsAreRemembered(t *testing.T) {
	s, usual := set(t), good()
	ask := func(i int) {
		in := usual
		in.Identity = fmt.Sprintf("web-%d", i)
		in.Path, in.Credential.Identity = "/spec/"+in.Identity, in.Identity
		require.True(t, s.Authorize(t.Context(), in).Allow)
	}
	const nodes, most = 10_000, 16_384
	for i := range nodes {
		ask(i)
	}
	first, next := 0, nodes
	again := testing.AllocsPerRun(5, func() { ask(first); first++ })
	made := testing.AllocsPerRun(5, func() { ask(next); next++ })
	require.Less(t, again, made/4, "allocations of a decision that was made, and of a new one")
	for ; next <= most; next++ {
		ask(next) // and what has no room is forgotten
	}
	require.Greater(t, testing.AllocsPerRun(5, func() { ask(first); first++ }), again)
}

func BenchmarkAuthorize(b *testing.B) {
	s := set(b)
	b.Run("again", func(b *testing.B) {
		in := good()
		b.ReportAllocs()
		for b.Loop() {
			require.True(b, s.Authorize(b.Context(), in).Allow)
		}
	})
	b.Run("new", func(b *testing.B) {
		in := good()
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			in.Method = strconv.Itoa(i)
			require.True(b, s.Authorize(b.Context(), in).Allow)
		}
	})
}

// VM is a guest with an attribute of every sort.
type VM struct {
	Preset     string            `hcl:"preset,optional" ref:"preset" plan:"-"`
	Image      string            `hcl:"image,optional" ref:"image" cost:"data-loss"`
	Cores      int               `hcl:"cores,optional"`
	Memory     int               `hcl:"memory,optional"`
	Tags       []string          `hcl:"tags,optional"`
	Protection bool              `hcl:"protection,optional"`
	Password   string            `hcl:"password,optional" secret:"true"`
	Options    map[string]string `hcl:"options,optional"`
	Startup    *Startup          `hcl:"startup,block"`
	NICs       []NIC             `hcl:"nic,block"`

	Keys []string `plan:"ssh_keys"` // resolved, no attribute of the language
}

// Startup is a block that there is once.
type Startup struct {
	Order *int          `hcl:"order,optional"`
	Up    time.Duration `hcl:"up,optional"`
}

// NIC is a block with a label.
type NIC struct {
	Name   string `hcl:"name,label"`
	Bridge string `hcl:"bridge,optional"`
	VLAN   int    `hcl:"vlan,optional"`
}

// CT is a guest of another kind, with an attribute that VM has not.
type CT struct {
	Template   string `hcl:"template,optional"`
	Memory     int    `hcl:"memory,optional"`
	Protection bool   `hcl:"protection,optional"`
}

// Pool is an object beside the guests.
type Pool struct {
	Comment string `hcl:"comment,optional"`
}

func kinds() model.Kinds {
	return model.Kinds{
		{
			Name: "vm", Block: "node", Guest: true, New: func() any { return &VM{} },
			Resolve: func(r *model.Resource, in model.Scope) []model.Problem {
				v := r.Spec.(*VM)
				if p := in.Site.Presets[v.Preset]; p != nil {
					v.Cores, v.Memory = p.Cores, p.Memory
				}
				v.Keys = []string{"ssh-ed25519 AAAA ops"}
				for i := range v.NICs {
					if v.NICs[i].Bridge == "" && in.Host != nil {
						v.NICs[i].Bridge = in.Host.Bridge
					}
				}
				return nil
			},
		},
		{Name: "ct", Block: "node", Guest: true, New: func() any { return &CT{} }},
		{Name: "pool", Block: "pool", New: func() any { return &Pool{} }},
	}
}

func at(file string, line int) diag.Range {
	return diag.Range{File: file, Start: diag.Pos{Line: line, Column: 3}, End: diag.Pos{Line: line, Column: 12}}
}

// site makes a site as the loader gives it: two deployed nodes and a recipe.
func site() *model.Site {
	keys := []string{"ops"}
	s := &model.Site{
		Name: "home", Domain: "home.example", Timezone: "Europe/Berlin", DNS: []string{"192.0.2.1"}, Gateway: "192.0.2.1",
		Packages: []string{"htop", "curl"}, Bridge: "vmbr0", VMUser: "homestak",
		VMIDRanges: []model.VMIDRange{{Name: "guests", From: 10000, To: 10999}, {Name: "test", From: 99000, To: 99999}}, VMIDDefault: "guests",
		Naming: &model.Naming{Pattern: "[a-z][a-z0-9-]*"}, At: at("site.hcl", 1),
		Hosts: map[string]*model.Host{"father": {
			Name: "father", API: "https://192.0.2.10:8006", APIToken: "root@pam!agent=hunter2", Bridge: "vmbr1",
			Hardware: &model.Hardware{CPUCores: 8, MemoryGB: 64}, At: at("hosts/father.hcl", 3),
		}},
		Presets: map[string]*model.Preset{"vm-small": {Name: "vm-small", Cores: 2, Memory: 2048, Disk: 10}},
		Postures: map[string]*model.Posture{
			"prod": {
				Name: "prod", Auth: &model.Auth{Method: "node_token"}, SSH: &model.SSHD{Port: 22, PermitRootLogin: "no", PasswordAuthentication: "no"},
				Sudo: &model.Sudo{}, Fail2ban: &model.Fail2ban{Enabled: true}, Packages: []string{"auditd", "curl"}, At: at("postures.hcl", 20),
			},
			"dev": {
				Name: "dev", Auth: &model.Auth{Method: "network", Networks: []string{"10.0.0.0/8"}},
				SSH: &model.SSHD{Port: 22, PermitRootLogin: "yes", PasswordAuthentication: "yes"}, At: at("postures.hcl", 1),
			},
		},
		Specs: map[string]*model.Spec{
			"base": {
				Name:   "base",
				Access: &model.Access{Posture: "prod", Users: []model.User{{Name: "homestak", Sudo: true, SSHKeys: &keys, Shell: "/bin/bash"}}},
				Config: &model.Config{Drift: "revert", Files: []model.File{
					{Path: "/etc/motd", Content: "welcome", Mode: "0644", Owner: "root:root"},
					{Path: "/etc/app.key", Content: "hunter2", Mode: "0600", Owner: "root:root"},
				}},
				Platform: &model.Platform{Packages: []string{"nginx", "htop"}, Services: &model.Services{Enable: []string{"nginx"}}},
				Network:  &model.Network{IP: "192.0.2.30/24"}, Sensitive: []string{"config.file./etc/app.key.content"}, At: at("specs.hcl", 1),
			},
			"plain": {Name: "plain", Identity: &model.Identity{Hostname: "special"}, At: at("specs.hcl", 40)},
		},
		Manifests: map[string]*model.Manifest{},
		Objects:   model.State{{Kind: "pool", Name: "lab"}: {Addr: model.Address{Kind: "pool", Name: "lab"}, Spec: &Pool{Comment: "ours"}, At: at("pools.hcl", 1)}},
		Kinds:     kinds(),
	}
	order := 2
	web := deploy(s, "web", "father")
	add(web, "web-1", "vm", 10001, &VM{
		Preset: "vm-small", Image: "debian-12", Tags: []string{"web"}, Password: "hunter2",
		Options: map[string]string{"cpu": "host", "args": "hunter2"}, Startup: &Startup{Order: &order, Up: time.Minute}, NICs: []NIC{{Name: "lan", VLAN: 12}},
	}, 5, "options.args").Spec = "base"
	cache := add(web, "cache", "ct", 0, &CT{Template: "debian", Memory: 512, Protection: true}, 25)
	cache.Spec, cache.Role, cache.VMIDRange, cache.DependsOn = "plain", "cache", "guests", []string{"web-1"}
	add(deploy(s, "recipe", ""), "edge", "vm", 99950, &VM{}, 1)
	return s
}

func deploy(s *model.Site, name, host string) *model.Manifest {
	m := &model.Manifest{Name: name, Pattern: "flat", Host: host, At: at("manifests/"+name+".hcl", 1)}
	s.Manifests[name] = m
	return m
}

// add declares a node at a line of its manifest's file.
func add(m *model.Manifest, name, kind string, vmid int, spec any, line int, sensitive ...string) *model.Node {
	where := at("manifests/"+m.Name+".hcl", line)
	addr := model.Address{Kind: kind, Name: name}
	n := &model.Node{
		Name: name, Block: name, Type: kind, VMID: vmid, Mode: "push", Orphan: "refuse", Drift: "revert", Manifest: m, At: where,
		Resource: &model.Resource{
			Addr: addr, Spec: spec, Manifest: m.Name, Node: name, Guest: &model.Guest{VMID: vmid, Choose: []model.VMIDRange{{Name: "guests", From: 10000, To: 10999}}}, At: where, Sensitive: sensitive,
		},
	}
	m.Nodes = append(m.Nodes, n)
	return n
}

// guest is one as a host shows it.
func guest(name string, vmid int, protection bool) *model.Resource {
	return &model.Resource{
		Addr: model.Address{Kind: "vm", Name: name}, Spec: &VM{Protection: protection}, Manifest: "web", Node: name, Guest: &model.Guest{VMID: vmid, Running: true},
	}
}

// planned makes the real plan from a site and what its host holds.
func planned(t testing.TB, s *model.Site, have ...*model.Resource) *plan.Plan {
	t.Helper()
	want, found := s.Want("father")
	require.Empty(t, found)
	o := model.Observed{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), State: model.State{}, Taken: map[int]string{}}
	for _, r := range have {
		o.State[r.Addr] = r
		o.Taken[r.Guest.VMID] = r.Node
	}
	return plan.Make(plan.Input{Site: s.Name, Commit: "3f2c1a9", Host: "father", Kinds: s.Kinds, Want: want, Have: o})
}

func request() policy.Request {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return policy.Request{
		Commit: model.Commit{
			ID: "3f2c1a9", Parents: []string{"77aa001"}, Author: model.Person{Name: "Ana", Email: "ana@home.example"},
			Trailers: map[string]string{"Ticket": "HOME-7"}, At: now.Add(-5 * time.Second), Signer: "ana",
		},
		Now: now, Unattended: true, OwnedCount: 12,
	}
}

// tree makes the files of a site out of names and texts in turn.
func tree(files ...string) fs.FS {
	t := fstest.MapFS{}
	for i := 0; i+1 < len(files); i += 2 {
		t[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	return t
}

// set compiles policies that must be in order.
func set(t testing.TB, files ...string) *policy.Set {
	t.Helper()
	s, found := policy.Compile(t.Context(), policy.Options{Site: tree(files...), Kinds: kinds()})
	require.Empty(t, lines(found))
	return s
}

// lines writes findings one a line, as the tests compare them.
func lines(found diag.List, _ ...plan.Rules) []string {
	var out []string
	for _, f := range found {
		out = append(out, fmt.Sprintf("%s [%s]", f, f.Source))
	}
	return out
}

func checkSite(t testing.TB, s *policy.Set, of *model.Site) []string {
	t.Helper()
	return lines(s.Site(t.Context(), of, request()))
}
