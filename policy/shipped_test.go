package policy_test

import (
	"fmt"
	"testing"

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
		{"recipes are nobody's deployment", func(s *model.Site) { s.Manifests["recipe"].Nodes[0].VMID = 7 }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			site := site()
			c.change(site)
			require.Equal(t, c.want, judgeSite(t, s, site))
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
		Severity: diag.Error, Source: diag.FromGuard,
		Summary: "the plan removes 4 of 12 owned guests, at most 3 in one pass",
		Detail: `If this is intended: a commit with the trailer "Allow-Deletes: 4", or apply --allow-deletes 4.
(rule deletion-cap, shipped with this program, package homestak.guard)`,
	}, found[0])

	site.Postures["prod"].SSH.PasswordAuthentication = "yes"
	found, _ = s.Site(t.Context(), site, request())
	require.Len(t, found, 1)
	require.Equal(t, diag.Finding{
		Severity: diag.Error, Source: diag.FromPolicy, Address: "posture.prod", At: at("postures.hcl", 20),
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
	"message": sprintf("it is %02d:%02d in Berlin, and nobody watches: changes wait until 22:00", [hour, minute]),
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
	require.Equal(t, []string{"error: it is 04:04 in Berlin, and nobody watches: changes wait until 22:00 [guard]"}, lines(s.Plan(t.Context(), site, p, r)))
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
	want := judgeSite(t, s, site)
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
