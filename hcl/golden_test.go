package hcl_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl"
)

var update = flag.Bool("update", false, "rewrite the wanted texts in testdata")

// Each archive of testdata is a site, with what the loader says of it in the file
// "want". The files "secrets" (YAML) and "vars" (NAME=VALUE, one a line) are the
// options; a file "dump" asks for the site itself as well.
func TestGolden(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, archives)
	for _, name := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			require.NoError(t, err)
			site, o, want, dumped := unpack(t, archive)
			got, found := hcl.Load(site, o)
			var text strings.Builder
			found.Write(&text)
			answers := map[string]string{"want": text.String()}
			if dumped {
				answers["dump"] = dump(got)
			}
			if *update {
				for i, f := range archive.Files {
					if a, ok := answers[f.Name]; ok {
						archive.Files[i].Data = []byte(a)
					}
				}
				require.NoError(t, os.WriteFile(name, txtar.Format(archive), 0o600))
				return
			}
			for file, text := range answers {
				require.Equal(t, want[file], text)
			}
		})
	}
}

func unpack(t *testing.T, archive *txtar.Archive) (site fstest.MapFS, o hcl.Options, want map[string]string, dumped bool) {
	t.Helper()
	site, want = fstest.MapFS{}, map[string]string{}
	o.Kinds = testKinds()
	for _, f := range archive.Files {
		switch f.Name {
		case "want", "dump":
			want[f.Name] = string(f.Data)
			dumped = dumped || f.Name == "dump"
		case "secrets":
			secrets, found := hcl.ParseSecrets("secrets.yaml", f.Data, nil)
			require.Empty(t, found)
			o.Secrets = secrets
		case "vars":
			o.Vars = map[string]string{}
			for line := range strings.Lines(string(f.Data)) {
				k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
				o.Vars[k] = v
			}
		default:
			site[f.Name] = &fstest.MapFile{Data: f.Data}
		}
	}
	require.Contains(t, want, "want")
	return site, o, want, dumped
}

// The kinds of the tests: small, but with every form that a kind can have.

type guest struct {
	Preset string `hcl:"preset,optional" ref:"preset" plan:"-" doc:"Size."`
	Image  string `hcl:"image,optional" ref:"image" cost:"data-loss" doc:"Disk image."`

	Cores   int               `hcl:"cores,optional" cost:"restart" doc:"CPU cores."`
	Memory  int               `hcl:"memory,optional" cost:"restart" doc:"Memory in MiB."`
	Disk    int               `hcl:"disk,optional" plan:"-" doc:"Root disk in GiB."`
	Disks   []disk            `hcl:"disk,block" doc:"Further disks."`
	NICs    []nic             `hcl:"nic,block" doc:"Network cards."`
	Tags    []string          `hcl:"tags,optional" doc:"Tags."`
	Notes   string            `hcl:"notes,optional" doc:"Notes."`
	Power   string            `hcl:"power,optional" cost:"restart" doc:"running or stopped."`
	OnBoot  bool              `hcl:"onboot,optional" doc:"Start with the host."`
	Startup *startup          `hcl:"startup,block" doc:"Order at boot."`
	Options map[string]string `hcl:"options,optional" cost:"restart" doc:"Further PVE keys."`
	Weight  float64           `hcl:"weight,optional" doc:"Share of the CPU."`
	Wait    time.Duration     `hcl:"wait,optional" doc:"Time to come up."`
	Root    string            `hcl:"root_password,optional" secret:"true" doc:"Password of root."`
	Pool    string            `hcl:"pool,optional" ref:"pool" plan:"-" doc:"Resource pool."`
	Near    []string          `hcl:"near,optional" ref:"node" plan:"-" doc:"Nodes that it stands beside."`

	Name string `plan:"name"`
}

type disk struct {
	Name    string `hcl:"name,label"`
	Size    int    `hcl:"size" cost:"hot" doc:"GiB."`
	Storage string `hcl:"storage,optional" cost:"migrate" doc:"Storage."`
}

type nic struct {
	Name string `hcl:"name,label"`
	MAC  string `hcl:"mac,optional" cost:"hot" doc:"MAC address."`
	IP   string `hcl:"ip,optional" doc:"Address."`
	VLAN int    `hcl:"vlan,optional" cost:"hot" doc:"VLAN tag."`
}

type startup struct {
	Order *int `hcl:"order,optional" doc:"Position."`
	Up    *int `hcl:"up,optional" doc:"Seconds."`
}

type container struct {
	Preset       string  `hcl:"preset,optional" ref:"preset" plan:"-" doc:"Size."`
	Template     string  `hcl:"template,optional" ref:"template" cost:"data-loss" doc:"Container template."`
	Unprivileged bool    `hcl:"unprivileged,optional" cost:"replace" doc:"Own user ids."`
	Mounts       []mount `hcl:"mount,block" doc:"Mount points."`
}

type mount struct {
	Name string `hcl:"name,label"`
	Path string `hcl:"path" doc:"Where."`
}

type image struct {
	Name     string `hcl:"name,label"`
	URL      string `hcl:"url" cost:"replace" doc:"Where it is downloaded from."`
	Checksum string `hcl:"checksum,optional" cost:"replace" doc:"sha256:…"`
}

type tmpl struct {
	Volume   string `hcl:"volume,optional" doc:"Volume of a container template."`
	URL      string `hcl:"url,optional" doc:"Where it is downloaded from."`
	Checksum string `hcl:"checksum,optional" doc:"sha256:…"`
	VMID     int    `hcl:"vmid,optional" doc:"VMID of the template to clone."`
	Storage  string `hcl:"storage,optional" doc:"Storage."`
}

func (t *tmpl) resolve(in model.Scope) []model.Problem {
	ways := slices.DeleteFunc([]string{t.Volume, t.URL, strings.Repeat("v", t.VMID)}, func(s string) bool { return s == "" })
	if len(ways) != 1 {
		return []model.Problem{{Summary: fmt.Sprintf("template %q does not say what it is", in.Name), Detail: "Set one of volume, url and vmid."}}
	}
	return nil
}

type pool struct {
	Name    string `hcl:"name,label"`
	Host    string `hcl:"host" ref:"host" plan:"-" doc:"Host where it lives."`
	Comment string `hcl:"comment,optional" doc:"Comment."`
}

func newGuest() any { return &guest{Power: "running", OnBoot: true} }

func resolveGuest(r *model.Resource, in model.Scope) []model.Problem {
	v := r.Spec.(*guest)
	v.Name = in.Name
	if p := in.Site.Presets[v.Preset]; p != nil {
		v.Cores, v.Memory = max(v.Cores, p.Cores), max(v.Memory, p.Memory)
	}
	var out []model.Problem
	if v.Cores == 0 || v.Memory == 0 {
		out = append(out, model.Problem{Summary: "node without size", Detail: "Name a preset, or set cores and memory."})
	}
	if v.Image == "" {
		out = append(out, model.Problem{Summary: "vm without image", Detail: "Write image = image.NAME."})
	}
	for _, d := range v.Disks {
		if d.Size > 1000 {
			out = append(out, model.Problem{Path: "disk." + d.Name + ".size", Summary: fmt.Sprintf("disk of %d GiB", d.Size), Detail: "At most 1000."})
		}
	}
	return out
}

func claimGuest(spec any) []model.Claim {
	var out []model.Claim
	for _, n := range spec.(*guest).NICs {
		if n.MAC != "" {
			out = append(out, model.Claim{What: "MAC address", Value: n.MAC, Path: "nic." + n.Name + ".mac"})
		}
		if n.IP != "" {
			out = append(out, model.Claim{What: "static address", Value: n.IP, Path: "nic." + n.Name + ".ip"})
		}
	}
	return out
}

func testKinds() model.Kinds {
	return model.Kinds{
		{Name: "vm", Block: "node", Doc: "A virtual machine.", Guest: true, New: newGuest, Resolve: resolveGuest, Claims: claimGuest},
		{Name: "ct", Block: "node", Doc: "A container.", Guest: true, Absent: map[string]string{"notes": "containers have none. Leave it out"}, New: func() any { return &container{Unprivileged: true} }, Resolve: func(r *model.Resource, _ model.Scope) []model.Problem {
			if r.Spec.(*container).Template == "" {
				return []model.Problem{{Summary: "ct without template", Detail: "Write template = template.NAME."}}
			}
			return nil
		}},
		{Name: "pve", Block: "node", Doc: "A PVE host of its own.", Guest: true, New: newGuest, Resolve: resolveGuest, Claims: claimGuest},
		{Name: "image", Block: "image", Doc: "A disk image.", Everywhere: true, New: func() any { return &image{} }, Resolve: func(r *model.Resource, _ model.Scope) []model.Problem {
			if r.Spec.(*image).Checksum == "" {
				return []model.Problem{{Path: "url", Severity: diag.Warning, Summary: "image without checksum", Detail: "Add checksum."}}
			}
			return nil
		}},
		{Name: "template", Block: "template", Doc: "What a container is made from.", Everywhere: true, New: func() any { return &tmpl{} }, Resolve: func(r *model.Resource, in model.Scope) []model.Problem {
			return r.Spec.(*tmpl).resolve(in)
		}},
		{Name: "pool", Block: "pool", Doc: "A resource pool.", New: func() any { return &pool{} }},
	}
}

// dump writes a site down: every attribute of every resource, and what stands
// around it.
func dump(s *model.Site) string {
	var b strings.Builder
	if s == nil {
		return "no site\n"
	}
	fmt.Fprintf(&b, "site %s at %s\n", s.Name, s.At)
	line := func(name string, v any) {
		if text := fmt.Sprint(v); text != "" && text != "[]" && text != "0" && text != "<nil>" {
			fmt.Fprintf(&b, "  %s = %s\n", name, text)
		}
	}
	attrs := func(spec any) {
		for _, a := range model.Attrs(spec) {
			line(a.Path, a.Value)
		}
	}
	attrs(s)
	for _, name := range keys(s.Hosts) {
		h := s.Hosts[name]
		fmt.Fprintf(&b, "host %s\n", name)
		attrs(h)
		line("token missing", h.TokenMissing)
		line("CA bytes", len(h.CAPEM))
	}
	for _, name := range keys(s.Presets) {
		fmt.Fprintf(&b, "preset %s\n", name)
		attrs(s.Presets[name])
	}
	for _, name := range keys(s.Postures) {
		fmt.Fprintf(&b, "posture %s\n", name)
		attrs(s.Postures[name])
	}
	for _, name := range keys(s.Specs) {
		v := s.Specs[name]
		fmt.Fprintf(&b, "spec %s\n", name)
		attrs(v)
		line("sensitive", v.Sensitive)
		line("missing", v.Missing)
	}
	for _, a := range s.Objects.Addresses() {
		dumpResource(&b, s.Objects[a])
	}
	for _, name := range keys(s.Manifests) {
		m := s.Manifests[name]
		fmt.Fprintf(&b, "manifest %s\n", name)
		attrs(m)
		for _, n := range m.Nodes {
			dumpResource(&b, n.Resource)
			attrs(n)
			line("mode", n.Mode)
			line("children", n.Children)
		}
	}
	return b.String()
}

func dumpResource(b *strings.Builder, r *model.Resource) {
	fmt.Fprintf(b, "%s at %s\n", r.Addr, r.At)
	for _, a := range model.Attrs(r.Spec) {
		if a.Value == nil {
			continue
		}
		v := fmt.Sprintf("%v", a.Value)
		if r.IsSensitive(a.Path) {
			v = fmt.Sprintf("(sensitive, %d bytes)", len(v))
		}
		fmt.Fprintf(b, "  * %s = %s\n", a.Path, v)
	}
	if g := r.Guest; g != nil {
		fmt.Fprintf(b, "  vmid %d of %v\n", g.VMID, g.Choose)
	}
	if len(r.Needs) > 0 {
		fmt.Fprintf(b, "  needs %v\n", r.Needs)
	}
	if len(r.Sensitive)+len(r.Missing) > 0 {
		fmt.Fprintf(b, "  sensitive %v, missing %v\n", r.Sensitive, r.Missing)
	}
	var places []string
	for _, p := range r.Ranges {
		places = append(places, fmt.Sprintf("%s:%d", p.Path, p.At.Start.Line))
	}
	fmt.Fprintf(b, "  places %v\n", places)
}

func keys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func TestFormat(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"indentation":  {"site \"home\" {\ndomain=\"x\"\n      timezone =   \"UTC\"\n}", "site \"home\" {\n  domain   = \"x\"\n  timezone = \"UTC\"\n}\n"},
		"comments":     {"# top\nlocals{\n  a=1 # one\n  bc=2 // two\n}\n\n\n", "# top\nlocals {\n  a  = 1 # one\n  bc = 2 // two\n}\n"},
		"empty":        {"", ""},
		"ends kept":    {"locals {\r\n  a=1\r\n}", "locals {\r\n  a = 1\r\n}\r\n"},
		"heredoc kept": {"locals {\n  a = <<E\n   x\n E\n}\n", "locals {\n  a = <<E\n   x\n E\n}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, found := hcl.Format([]byte(c.in), "a.hcl")
			require.Empty(t, found)
			require.Equal(t, c.want, string(got))
			again, _ := hcl.Format(got, "a.hcl")
			require.Equal(t, c.want, string(again), "formatting twice changes nothing")
		})
	}
}

func TestFormatLeavesAloneWhatItCannotRead(t *testing.T) {
	for _, in := range []string{"locals {\n  a=\n}\n", "\xff", "locals {\n  a = " + strings.Repeat("[", 1000)} {
		got, found := hcl.Format([]byte(in), "a.hcl")
		require.Equal(t, in, string(got))
		require.NotZero(t, found.Errors())
		require.False(t, found[0].At.IsZero())
	}
}

func TestReference(t *testing.T) {
	var b strings.Builder
	require.NoError(t, hcl.Reference(&b, testKinds()))
	const name = "testdata/reference.md"
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o600))
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String())
}

// FuzzLoad feeds two files to the loader: it never panics, tells every error with
// a place, gives the same answer twice, and what it accepts can be resolved.
func FuzzLoad(f *testing.F) {
	archives, err := filepath.Glob("testdata/*.txtar")
	require.NoError(f, err)
	for _, name := range archives {
		archive, err := txtar.ParseFile(name)
		require.NoError(f, err)
		var base, rest []byte
		for _, file := range archive.Files {
			switch {
			case filepath.Ext(file.Name) != ".hcl":
			case base == nil:
				base = file.Data
			default:
				rest = append(rest, file.Data...)
			}
		}
		f.Add(base, rest)
	}
	f.Add([]byte("site \"h\" {\n}\nlocals {\n  a = [for i in range(3): \"%{ if i > 1 }${i}%{ else }-%{ endif }\"]...\n}\n"), []byte("\xef\xbb\xbfa = <<-E\n  x\n  E\n"))
	secrets := &model.Secrets{Source: "s.yaml", Values: map[string]map[string]string{
		"passwords": {"root": "hunter2hunter2", "none": ""}, "ssh_keys": {"ops": "ssh-ed25519 AAAAhunter2 ops"}, "api_tokens": {"father": "a@pam!b=hunter2hunter2"},
	}}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if len(a)+len(b) > 16<<10 {
			t.Skip("large inputs only slow the search down")
		}
		tree := fstest.MapFS{"a.hcl": {Data: a}, "sub/b.hcl": {Data: b}, "t.tmpl": {Data: a}, "text": {Data: []byte("text")}}
		for _, s := range []*model.Secrets{nil, secrets} {
			o := hcl.Options{Kinds: testKinds(), Secrets: s}
			var l hcl.Loader
			site, found := l.Load(tree, o)
			for _, d := range found {
				if d.Severity == diag.Error && d.At.IsZero() {
					t.Errorf("no place: %s %s", d, d.Detail)
				}
				if strings.HasPrefix(d.Summary, "internal error") {
					t.Errorf("%s: %s", d, d.Detail)
				}
				text := d.Summary + d.Detail + d.Code
				if s != nil && strings.Contains(text, "hunter2") && !bytes.Contains(a, []byte("hunter2")) && !bytes.Contains(b, []byte("hunter2")) {
					t.Errorf("a secret in %q", text)
				}
			}
			var other hcl.Loader
			again, foundAgain := other.Load(tree, o)
			if dump(site) != dump(again) || !slices.Equal(found, foundAgain) {
				t.Error("another answer to the same question")
			}
			if !found.HasErrors() {
				if site == nil {
					t.Fatal("neither a site nor an error")
				}
				for host := range site.Hosts {
					if _, l := site.Want(host); l.HasErrors() {
						t.Errorf("accepted, but: %s", l[0])
					}
				}
			}
		}
		for _, text := range [][]byte{a, b} {
			once, found := hcl.Format(text, "a.hcl")
			if found.HasErrors() {
				continue
			}
			if twice, _ := hcl.Format(once, "a.hcl"); !bytes.Equal(once, twice) {
				t.Errorf("formatting twice is not formatting once:\n%s\n%s", once, twice)
			}
		}
	})
}

// FuzzSecrets feeds any text to the parser of secrets: no finding repeats it.
func FuzzSecrets(f *testing.F) {
	f.Add([]byte("passwords:\n  a: &x hunter2\n  b: *x\nauth:\n  node_tokens: {web: hunter2}\n"))
	f.Add([]byte("? hunter2\n: {hunter2: [hunter2]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, found := hcl.ParseSecrets("s.yaml", data, nil)
		require.NotNil(t, s)
		for _, d := range found {
			require.False(t, d.At.IsZero())
			require.Empty(t, d.Code)
		}
		for _, section := range s.Values {
			for _, v := range section {
				for _, d := range found {
					// Names of sections and keys may be told, and a value can look like one.
					if len(v) > 12 && !strings.Contains(string(data), v+":") {
						require.NotContains(t, d.Summary+d.Detail, v)
					}
				}
			}
		}
	})
}

// large is a site of that many nodes, spread over files.
func large(nodes, manifests int) fstest.MapFS {
	site := fstest.MapFS{"site.hcl": &fstest.MapFile{Data: []byte(`site "home" {
  domain = "home.example"
  vmid_range "main" {
    from = 100
    to   = 999999
  }
}
host "father" {
  api = "https://192.0.2.10:8006"
}
preset "vm-small" {
  cores  = 2
  memory = 2048
}
image "debian-12" {
  url      = "https://images.example/debian.qcow2"
  checksum = "sha256:ab"
}
spec "base" {
  access {
    user "admin" {
      sudo = true
    }
  }
}
locals {
  storage = "fast"
}
`)}}
	for m := range manifests {
		var b strings.Builder
		fmt.Fprintf(&b, "manifest \"m%d\" {\n  pattern = \"flat\"\n  host    = host.father\n", m)
		for i := m * nodes / manifests; i < (m+1)*nodes/manifests; i++ {
			fmt.Fprintf(&b, `
  node "web-%d" {
    type    = "vm"
    preset  = preset.vm-small
    image   = image.debian-12
    spec    = spec.base
    vmid    = %d
    memory  = 4096
    tags    = ["web", "prod"]
    purpose = "web server of ${site.domain}"
    disk "data" {
      size    = 20
      storage = local.storage
    }
    nic "lan" {
      vlan = 10
      ip   = cidrhost("10.0.0.0/8", %d)
    }
  }
`, i, 100+i, i+1)
		}
		b.WriteString("}\n")
		site[fmt.Sprintf("manifests/m%03d.hcl", m)] = &fstest.MapFile{Data: []byte(b.String())}
	}
	return site
}

func BenchmarkLoad(b *testing.B) {
	for _, c := range []struct{ nodes, files int }{{1000, 1}, {1000, 1000}, {10_000, 100}} {
		site := large(c.nodes, c.files)
		o := hcl.Options{Kinds: testKinds()}
		var bytes int64
		for _, f := range site {
			bytes += int64(len(f.Data))
		}
		check := func(b *testing.B, s *model.Site, found int) {
			if n := len(s.Manifests); found > 0 || n != c.files {
				b.Fatalf("%d findings, %d manifests", found, n)
			}
		}
		b.Run(fmt.Sprintf("cold/%d-nodes-%d-files", c.nodes, c.files), func(b *testing.B) {
			b.SetBytes(bytes)
			b.ReportAllocs()
			for b.Loop() {
				s, found := hcl.Load(site, o)
				check(b, s, len(found))
			}
		})
		b.Run(fmt.Sprintf("unchanged/%d-nodes-%d-files", c.nodes, c.files), func(b *testing.B) {
			var l hcl.Loader
			l.Load(site, o)
			for b.Loop() {
				s, found := l.Load(site, o)
				check(b, s, len(found))
			}
		})
		b.Run(fmt.Sprintf("one-changed/%d-nodes-%d-files", c.nodes, c.files), func(b *testing.B) {
			var l hcl.Loader
			l.Load(site, o)
			original := site["site.hcl"].Data
			defer func() { site["site.hcl"].Data = original }()
			for i := 0; b.Loop(); i++ {
				site["site.hcl"].Data = fmt.Appendf(nil, "%s# %d\n", original, i)
				s, found := l.Load(site, o)
				check(b, s, len(found))
			}
		})
	}
}

// What a load of 10,000 nodes holds at its peak, and what the result holds.
func BenchmarkMemory(b *testing.B) {
	site := large(10_000, 100)
	o := hcl.Options{Kinds: testKinds()}
	for b.Loop() {
		debug.FreeOSMemory()
		before := heap()
		var l hcl.Loader
		s, _ := l.Load(site, o)
		peak := rss()
		debug.FreeOSMemory()
		b.ReportMetric(float64(heap()-before)/(1<<20), "MiB-kept")
		b.ReportMetric(peak, "MiB-peak-rss")
		runtime.KeepAlive(s)
		runtime.KeepAlive(&l)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// rss is the peak of the process so far, where the system tells it.
func rss() float64 {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kib); n == 1 {
			return kib / 1024
		}
	}
	return 0
}
