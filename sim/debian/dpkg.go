package debian

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/homestak/homestak-gitops/sim/machine"
	"github.com/homestak/homestak-gitops/sim/machine/userland"
)

// Package is a package in a repository.
type Package struct {
	Name, Version, Arch string
	Source              string // the address of the repository that has it; "": every one
	Component           string // of that repository; "": any
	Depends             []string
	Files               map[string]string // by path; what begins as a program or a script may be executed
	Conffiles           []string          // those of Files that stay when it is removed, with local changes
	Scripts             map[string]string // postinst, prerm, postrm
}

// states of a package, as dpkg has them.
const (
	statusInstalled = "install ok installed"
	statusHalf      = "install ok half-configured"
	statusConfig    = "deinstall ok config-files"
)

// installed is a package on the machine.
type installed struct {
	Package

	status string
	auto   bool
}

// database is /var/lib/dpkg.
type database struct{ list []installed }

const (
	statusFile = "/var/lib/dpkg/status"
	statesFile = "/var/lib/apt/extended_states"
)

func readDatabase(fs *machine.FS) *database {
	d := &database{}
	auto := map[string]bool{}
	for _, p := range paragraphs(fs, statesFile) {
		auto[p["Package"]] = p["Auto-Installed"] == "1"
	}
	for _, p := range paragraphs(fs, statusFile) {
		d.list = append(d.list, installed{
			Package: Package{Name: p["Package"], Version: p["Version"], Arch: p["Architecture"], Depends: strings.FieldsFunc(p["Depends"], func(r rune) bool { return r == ',' || r == ' ' }), Conffiles: strings.Fields(p["Conffiles"])},
			status:  p["Status"], auto: auto[p["Package"]],
		})
	}
	return d
}

// paragraphs reads a file of fields.
func paragraphs(fs *machine.FS, name string) []map[string]string {
	text, err := fs.ReadFile(name)
	if err != nil {
		return nil
	}
	var out []map[string]string
	for part := range strings.SplitSeq(text, "\n\n") {
		p := map[string]string{}
		for line := range strings.Lines(part) {
			if key, value, ok := strings.Cut(strings.TrimRight(line, "\n"), ": "); ok && !strings.HasPrefix(line, "#") {
				p[key] = value
			}
		}
		if len(p) > 0 {
			out = append(out, p)
		}
	}
	return out
}

func (d *database) write(fs *machine.FS) {
	sort.Slice(d.list, func(i, j int) bool { return d.list[i].Name < d.list[j].Name })
	var b, states strings.Builder
	for _, p := range d.list {
		fmt.Fprintf(&b, "Package: %s\nStatus: %s\nArchitecture: %s\nVersion: %s\n", p.Name, p.status, p.Arch, p.Version)
		if len(p.Depends) > 0 {
			fmt.Fprintf(&b, "Depends: %s\n", strings.Join(p.Depends, ", "))
		}
		if len(p.Conffiles) > 0 {
			fmt.Fprintf(&b, "Conffiles: %s\n", strings.Join(p.Conffiles, " "))
		}
		b.WriteString("\n")
		if p.auto {
			fmt.Fprintf(&states, "Package: %s\nArchitecture: %s\nAuto-Installed: 1\n\n", p.Name, p.Arch)
		}
	}
	must(fs.WriteFile(statusFile, b.String(), 0o644, 0, 0))
	if _, err := fs.Stat(machine.Cred{}, statesFile); err == nil || states.Len() > 0 {
		must(fs.WriteFile(statesFile, states.String(), 0o644, 0, 0))
	}
}

func (d *database) find(name string) *installed {
	plain, _, _ := strings.Cut(name, ":")
	for i := range d.list {
		if d.list[i].Name == plain {
			return &d.list[i]
		}
	}
	return nil
}

// has reports whether a package is installed.
func (d *database) has(name string) bool {
	p := d.find(name)
	return p != nil && p.status == statusInstalled
}

func (p *installed) word() string {
	return p.status[strings.LastIndexByte(p.status, ' ')+1:]
}

func (p *installed) abbreviated() string {
	return map[string]string{statusInstalled: "ii ", statusHalf: "iF ", statusConfig: "rc "}[p.status]
}

// dpkgQuery is dpkg-query -W.
func (m packages) dpkgQuery(p *machine.Process, o userland.Options) int {
	form, rest := cmp.Or(strings.TrimPrefix(o.Text("f"), "="), "${Package}\t${Version}\n"), o.Args
	d := readDatabase(m.K.FS)
	code := 0
	var list []*installed
	for _, name := range rest {
		one := d.find(name)
		if one == nil {
			p.Failf("no packages found matching %s", name)
			code = 1
			continue
		}
		list = append(list, one)
	}
	if len(rest) == 0 {
		for i := range d.list {
			list = append(list, &d.list[i])
		}
	}
	form = strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(form)
	for _, one := range list {
		p.Printf("%s", strings.NewReplacer(
			"${Package}", one.Name, "${binary:Package}", one.Name, "${Version}", one.Version, "${Architecture}", one.Arch, "${Status}", one.status,
			"${db:Status-Status}", one.word(), "${db:Status-Abbrev}", one.abbreviated()).Replace(form))
	}
	return code
}

func listOf(name string) string { return "/var/lib/dpkg/info/" + name + ".list" }

// dpkg is dpkg --audit and dpkg --configure -a.
func (m packages) dpkg(p *machine.Process, o userland.Options) int {
	d := readDatabase(m.K.FS)
	for i := range d.list {
		one := &d.list[i]
		switch {
		case one.status != statusHalf:
		case o.Has("audit"):
			p.Printf("The following packages are only half configured: %s\n", one.Name)
		case o.Has("configure"):
			if code := m.script(p, one.Name, "postinst", "configure"); code != 0 {
				return p.Failf("error processing package %s (--configure)", one.Name)
			}
			one.status = statusInstalled
			d.write(m.K.FS)
		}
	}
	return 0
}

// unpack puts the files of a package in place, and runs its script. It gives false if that fails.
func (m packages) unpack(p *machine.Process, d *database, of Package, auto bool) bool {
	fs := m.K.FS
	before := d.find(of.Name)
	var list strings.Builder
	for _, name := range slices.Sorted(maps.Keys(of.Files)) {
		text := of.Files[name]
		perm := uint32(0o644)
		if strings.HasPrefix(text, "#!") || strings.HasPrefix(text, machine.Executable("")[:4]) {
			perm = 0o755
		}
		list.WriteString(name + "\n")
		if _, err := fs.Stat(machine.Cred{}, name); err == nil && slices.Contains(of.Conffiles, name) {
			continue // --force-confold
		}
		must(fs.WriteFile(name, text, perm, 0, 0))
	}
	must(fs.WriteFile(listOf(of.Name), list.String(), 0o644, 0, 0))
	for name, text := range of.Scripts {
		must(fs.WriteFile("/var/lib/dpkg/info/"+of.Name+"."+name, text, 0o755, 0, 0))
	}
	now := installed{Package: of, status: statusHalf, auto: auto}
	if before != nil {
		now.auto = auto && (before.auto || before.status == statusConfig)
		*before = now
	} else {
		d.list = append(d.list, now)
	}
	d.write(fs)
	code := m.script(p, of.Name, "postinst", "configure")
	one := d.find(of.Name)
	if code != 0 {
		p.Printf("dpkg: error processing package %s (--configure):\n installed %[1]s package post-installation script subprocess returned error exit status %d\n", of.Name, code)
		return false
	}
	one.status = statusInstalled
	d.write(fs)
	return true
}

// afterDpkg runs what the configuration of dpkg says (dpkg(1), --post-invoke).
func (m packages) afterDpkg(p *machine.Process) int {
	const dir = "/etc/dpkg/dpkg.cfg.d"
	list, _ := m.K.FS.ReadDir(machine.Cred{}, dir)
	for _, f := range list {
		text, _ := m.K.FS.ReadFile(dir + "/" + f.Name)
		for line := range strings.Lines(text) {
			if command, ok := strings.CutPrefix(strings.TrimSpace(line), "post-invoke="); ok {
				if code, err := p.Run([]string{"sh", "-c", strings.Trim(command, `"`)}); code != 0 || err != nil {
					return 100
				}
			}
		}
	}
	return 0
}

// script runs a script of a package, if it has it.
func (m packages) script(p *machine.Process, name, which, arg string) int {
	file := "/var/lib/dpkg/info/" + name + "." + which
	if _, err := m.K.FS.Stat(machine.Cred{}, file); err != nil {
		return 0
	}
	code, err := p.Run([]string{file, arg})
	if err != nil {
		return 2
	}
	return code
}

// erase removes a package. Configuration files stay.
func (m packages) erase(p *machine.Process, d *database, name string) bool {
	fs := m.K.FS
	one := d.find(name)
	if code := m.script(p, name, "prerm", "remove"); code != 0 {
		p.Printf("dpkg: error processing package %s (--remove)\n", name)
		return false
	}
	text, _ := fs.ReadFile(listOf(name))
	for file := range strings.Lines(text) {
		if file = strings.TrimSpace(file); slices.Contains(one.Conffiles, file) {
			continue
		}
		_ = fs.Remove(machine.Cred{}, file) // it may have been removed already
		for dir := path.Dir(file); strings.Count(dir, "/") > 2; dir = path.Dir(dir) {
			if fs.Remove(machine.Cred{}, dir) != nil {
				break // something else is in it
			}
		}
	}
	m.script(p, name, "postrm", "remove")
	_ = fs.Remove(machine.Cred{}, listOf(name))
	one.status, one.auto = statusConfig, false
	if len(one.Conffiles) == 0 {
		d.list = slices.DeleteFunc(d.list, func(i installed) bool { return i.Name == name })
	}
	d.write(fs)
	return true
}
