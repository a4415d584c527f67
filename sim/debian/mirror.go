package debian

import (
	"fmt"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
)

// Downloads of a machine, which need name resolution.

// Unnamed makes the machine unable to resolve any name, as with a name server that is away, or able again.
func (m *Machine) Unnamed(yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unnamed = yes
}

func (m *Machine) names() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.unnamed
}

// host returns the host of a source.
func (s source) host() string {
	_, rest, _ := strings.Cut(s.url, "://")
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// overNetwork reports whether a URL needs a name.
func overNetwork(url string) bool {
	return strings.HasPrefix(url, "http://") || strings.HasPrefix(url, "https://")
}

// ahosts is getent ahosts: every name has an address.
func (m packages) ahosts(p *machine.Process) int {
	if !m.names() {
		return 2
	}
	for _, name := range p.Args[2:] {
		p.Printf("192.0.2.80      STREAM %s\n", name)
	}
	return 0
}

// printURIs is apt-get --print-uris: what would be fetched.
func (m packages) printURIs(p *machine.Process, words []string, only string) int {
	if words[0] == "update" {
		for _, s := range m.sources(only) {
			p.Printf("'%s/dists/%s/InRelease' %s 0 \n", strings.TrimSuffix(s.url, "/"), strings.Join(s.suites, ""), s.host())
		}
		return 0
	}
	list, missing := m.plan(readDatabase(m.K.FS), words[1:])
	if missing != "" {
		fmt.Fprintf(p.Err(), "E: Unable to locate package %s\n", missing)
		return 100
	}
	for _, one := range list {
		p.Printf("'http://deb.debian.org/debian/pool/%s_%s.deb' %[1]s.deb 1 \n", one.Name, one.Version)
	}
	return 0
}

// unresolved is apt-get install without names, for packages that are not all there.
func (packages) unresolved(p *machine.Process) int {
	fmt.Fprintf(p.Err(), "E: Failed to fetch http://deb.debian.org/debian  Temporary failure resolving 'deb.debian.org'\n")
	return 100
}

// helper is apt-helper download-file, for the first file of a mirror and for the keys of Proxmox, which are simulated, and so
// are their checksums.
func (m packages) helper(p *machine.Process) int {
	i := slices.Index(p.Args, "download-file")
	if i < 0 || i+2 >= len(p.Args) || !m.names() || !overNetwork(p.Args[i+1]) ||
		!strings.HasSuffix(p.Args[i+1], "/InRelease") && !strings.HasPrefix(p.Args[i+1], "https://enterprise.proxmox.com/debian/proxmox-") {
		fmt.Fprintf(p.Err(), "E: Failed to fetch %s\n", strings.Join(p.Args[1:], " "))
		return 100
	}
	must(m.K.FS.WriteFile(p.Path(p.Args[i+2]), "simulated\n", 0o644, 0, 0))
	return 0
}

// fetches reports whether packages have to be fetched before they are installed.
func (m packages) fetches(names []string) bool {
	list, _ := m.plan(readDatabase(m.K.FS), names)
	return len(list) > 0
}
