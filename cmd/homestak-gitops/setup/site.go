package setup

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// firstSite is the site of init for this host, without a guest: the manifest is an example in comments.
func (w *planner) firstSite() (map[string][]byte, error) {
	h, quotedList := w.host, func(words ...string) string {
		var out []string
		for _, word := range words {
			if word != "" {
				out = append(out, fmt.Sprintf("%q", word))
			}
		}
		if len(out) == 0 {
			return ""
		}
		return "[" + strings.Join(out, ", ") + "]"
	}
	one := func(text string) string { return strings.Trim(quotedList(text), "[]") }
	files := map[string][]byte{"hosts/" + h.Name + ".hcl": []byte(w.hostText(quotedList))}
	var wrong []error
	for name, content := range w.Files {
		text := string(content)
		set := func(attr, value string) {
			line := regexp.MustCompile(`(?m)^(\s*` + attr + `\s*=\s).*\n`)
			if len(line.FindAllString(text, -1)) != 1 {
				wrong = append(wrong, fmt.Errorf("%s of init has not one line %s", name, attr))
			}
			if value == "" { // the host does not say it
				text = line.ReplaceAllString(text, "")
			} else {
				text = line.ReplaceAllString(text, "${1}"+value+"\n")
			}
		}
		switch {
		case strings.HasPrefix(name, "hosts/"):
			continue
		case name == "site.hcl":
			from := h.freeRange()
			set("domain", one(h.Resolver.Search))
			set("timezone", one(h.Timezone))
			set("dns", quotedList(h.Resolver.DNS1, h.Resolver.DNS2, h.Resolver.DNS3))
			set("gateway", one(w.bridge.Gateway))
			set("from", fmt.Sprint(from))
			set("to", fmt.Sprint(from+999))
		case strings.HasPrefix(name, "manifests/"):
			text = regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(text, "# $1")
			text = "# An example. Without the leading # of each line it creates two VMs.\n\n" + text
			text = strings.ReplaceAll(text, "host.father", "host."+h.Name)
			text = strings.ReplaceAll(text, `"vmbr0"`, fmt.Sprintf("%q", w.bridge.Iface))
		}
		files[name] = []byte(text)
	}
	return files, errors.Join(wrong...)
}

// hostText is the block of the host.
func (w *planner) hostText(list func(...string) string) string {
	h, api := w.host, w.API
	if api == "" {
		api = h.api()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# The Proxmox VE host. Its API token and the key for guests are in secrets.yaml.\nhost %q {\n", h.Name)
	fmt.Fprintf(&b, "  api         = %q\n", api)
	if len(h.Nodes) > 1 {
		fmt.Fprintf(&b, "  nodes       = %s\n", list(h.Nodes...))
	}
	fmt.Fprintf(&b, "  fingerprint = %q\n  bridge      = %q\n\n", h.fingerprint(), w.bridge.Iface)
	fmt.Fprintf(&b, "  storage {\n    disks  = %q\n    images = %q\n    iso    = %q\n  }\n", w.disks, w.images.Storage, w.images.Storage)
	b.WriteString("\n  # Specs of guests are applied by SSH with this key.\n  ssh {\n    key = secret.ssh_keys[\"gitops-private\"]\n  }\n}\n")
	return b.String()
}

// secretsText is the file of secrets, with ${NAME} for what the commands print.
func (w *planner) secretsText() string {
	return fmt.Sprintf(`# The secrets of this site, made by homestak-gitops setup. Keep a copy elsewhere. docs/reference.md has its sections.
api_tokens:
  %s: "%s!%s=${token}"

# Public keys log in to all guests: add yours. The private one is the agent's.
ssh_keys:
  gitops: "${public_key}"
  gitops-private: "${private_key}"

auth:
  # Signs the tags that prove which guests on the hosts are the ones of this site.
  ownership_key: "${ownership_key}"
`, w.host.Name, user, token)
}

func (w *planner) agentText() string {
	auth := ""
	switch {
	case w.login.KeyFile != "":
		auth = fmt.Sprintf("\n  auth {\n    key_file         = %q\n    known_hosts_file = %q\n  }\n", w.login.KeyFile, w.login.KnownHostsFile)
	case w.login.TokenFile != "":
		auth = fmt.Sprintf("\n  auth {\n    token_file = %q\n  }\n", w.login.TokenFile)
	}
	return fmt.Sprintf("identity = %q\n\nrepository {\n  url = %q\n%s}\n", w.host.Name, w.repository, auth)
}
