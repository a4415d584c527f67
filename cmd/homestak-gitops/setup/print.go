package setup

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Show lists the steps with what they run, for the owner to agree to.
func (p *Plan) Show(w io.Writer) {
	fmt.Fprintf(w, "host %s: Proxmox VE %s, disks on %s, images on %s, bridge %s\n", p.host.Name, p.host.Version, p.disks, p.images.Storage, p.bridge.Iface)
	for _, note := range p.Notes {
		fmt.Fprintf(w, "%s.\n", note)
	}
	for _, st := range p.steps {
		fmt.Fprintf(w, "\n%s\n", st.name)
		for _, a := range st.do {
			fmt.Fprintf(w, "  %s\n", p.text(a))
		}
	}
}

// text is an action as it is shown.
func (p *Plan) text(a action) string {
	switch {
	case a.push != nil:
		return "commit and push the first site to " + p.repository
	case a.file != "":
		return fmt.Sprintf("write %s (mode %03o)", a.file, a.mode)
	}
	return quoted(a.argv)
}

// Script writes the steps as a script for sh. It needs git, since the program makes the first commit itself.
func (p *Plan) Script(w io.Writer) {
	fmt.Fprintf(w, "#!/bin/sh\n# What homestak-gitops setup does on host %s. Without its record: setup --undo does not know of it.\nset -eu\numask 022\ngit --version >/dev/null # apt install git\ninstall -d -m 755 %s\n", p.host.Name, quoted([]string{p.folder}))
	for _, st := range p.steps {
		fmt.Fprintf(w, "\n# %s\n", st.name)
		for _, a := range st.do {
			switch {
			case a.push != nil:
				p.scriptPush(w, a.push)
			case a.file != "":
				fmt.Fprintf(w, "install -D -m %03o /dev/null %s\n", a.mode, quoted([]string{a.file}))
				here(w, quoted([]string{a.file}), a.content, st.secret())
			case a.field != "":
				fmt.Fprintf(w, "%s=$(%s)\n", a.keep, quoted(a.argv)) // not in a pipe, which hides its failure
				fmt.Fprintf(w, "%[1]s=$(printf %%s \"$%[1]s\" | sed -n 's/.*\"%[2]s\":\"\\([^\"]*\\)\".*/\\1/p')\n[ -n \"$%[1]s\" ]\n", a.keep, a.field)
			case a.keep != "":
				fmt.Fprintf(w, "%s=$(%s)\n", a.keep, quoted(a.argv))
			default:
				fmt.Fprintf(w, "%s\n", quoted(a.argv))
			}
		}
	}
}

// secret reports whether the files of a step have what its commands print.
func (st step) secret() bool {
	return slices.ContainsFunc(st.do, func(a action) bool { return a.keep != "" })
}

// here writes a file from a here-document.
func here(w io.Writer, name, content string, expand bool) {
	end := "'EOF'"
	if expand {
		end = "EOF"
	}
	if !strings.HasSuffix(content, "\n") {
		content += "\n"
	}
	fmt.Fprintf(w, "cat >%s <<%s\n%sEOF\n", name, end, content)
}

func (p *Plan) scriptPush(w io.Writer, files map[string][]byte) {
	to := quoted([]string{p.repository})
	fmt.Fprintf(w, "site=$(mktemp -d)\ngit init --quiet --initial-branch main \"$site\"\n")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(w, "install -D -m 644 /dev/null \"$site/%s\"\n", name)
		here(w, `"$site/`+name+`"`, string(files[name]), false)
	}
	fmt.Fprintf(w, "git -C \"$site\" add --all\ngit -C \"$site\" -c user.name=homestak-gitops -c user.email=root@%s commit --quiet --no-gpg-sign -m 'First site of %s'\n", p.host.Name, p.host.Name)
	fmt.Fprintf(w, "git init --quiet --bare --shared=world --initial-branch main %s\n", to)
	fmt.Fprintf(w, "git -C \"$site\" push --quiet %s main\nrm -rf \"$site\"\n", to)
}

// Next is what the owner does after Do.
func (p *Plan) Next() string {
	from, root := p.repository, "root@"+p.host.Address
	if strings.Contains(p.host.Address, ":") {
		root = "root@[" + p.host.Address + "]"
	}
	if p.Local {
		from = root + ":" + p.repository
	}
	less := ""
	if p.login.KeyFile != "" {
		less = "Take the right to write from the deploy key now: the agent only reads, and who writes decides over all guests.\n"
	}
	return fmt.Sprintf(`The agent runs: homestak-gitops status. To undo all: homestak-gitops setup --undo
%sNext, on your machine:

  git clone %s my-site

Edit, commit, push: the agent makes the host match. For plan and apply there, and as a
backup of the ownership key: scp %s:%s my-site/
`, less, from, root, secretsFile)
}
