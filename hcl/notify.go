package hcl

import (
	"net/mail"
	"net/url"
	"slices"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"

	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// decodeNotify decodes where messages are sent. Their hosts are names until checkNotify.
func (l *load) decodeNotify() {
	for _, b := range l.Blocks["notify"] {
		n := &model.Notify{At: lang.DiagRange(b.At)}
		d := l.decodeBlock(b, n, true)
		n.Missing = slices.Concat(d.Missing, d.MissingToCreate)
		for _, name := range d.Sensitive {
			if name != "to" && name != "secret" && name != "user" {
				b.Invalid = true
				l.Errorf(attributeAt(b, name), name+" must not come from a secret", "Only to, secret and user may.")
			}
		}
		if b.Invalid {
			continue
		}
		if n.CA != "" {
			n.CAPEM = l.readCA(b, n.CA)
		}
		l.checkDestination(b, n, d.Sensitive)
		if l.site.Notify == nil {
			l.site.Notify = map[string]*model.Notify{}
		}
		l.site.Notify[b.Name] = n
	}
}

// attributeAt is where an attribute of a block is; the block itself without it.
func attributeAt(b *lang.Block, name string) hclv2.Range {
	if a := b.Body.Attributes[name]; a != nil {
		return a.SrcRange
	}
	return b.At
}

// notifyAttributes are those that not all types have, with the types.
var notifyAttributes = map[string][]model.NotifyType{
	"secret": {model.NotifyWebhook, model.NotifyNtfy, model.NotifyMatrix, model.NotifySMTP, model.NotifyAlertmanager, model.NotifyGitHub, model.NotifyGitLab, model.NotifyGitea, model.NotifyBitbucket},
	"server": {model.NotifyMatrix, model.NotifySMTP},
	"user":   {model.NotifySMTP},
	"from":   {model.NotifySMTP},
	"on":     messageTypes,
	"after":  messageTypes,
	"remind": {model.NotifyWebhook, model.NotifyNtfy, model.NotifySlack, model.NotifyMatrix, model.NotifySMTP},
	"flap":   messageTypes,
}

var messageTypes = []model.NotifyType{model.NotifyWebhook, model.NotifyNtfy, model.NotifySlack, model.NotifyMatrix, model.NotifySMTP, model.NotifyAlertmanager}

// checkDestination checks what depends on the type. A value that is not known here is not checked.
func (l *load) checkDestination(b *lang.Block, n *model.Notify, sensitive []string) {
	refuse := func(name, summary, detail string) {
		l.Errorf(attributeAt(b, name), "notify "+lang.Quote(n.Name)+": "+summary, "%s", detail)
	}
	for _, a := range lang.SortedAttributes(b.Body) {
		if types, some := notifyAttributes[a.Name]; some && !slices.Contains(types, n.Type) {
			of := make([]string, len(types))
			for i, t := range types {
				of[i] = string(t)
			}
			refuse(a.Name, a.Name+" is not for type "+string(n.Type), "Remove it. It is for "+strings.Join(of, ", ")+".")
		}
	}
	need := func(name, value, why string) {
		if value == "" && b.Body.Attributes[name] == nil {
			refuse(name, "it has no "+name, why)
		}
	}
	if a := b.Body.Attributes["on"]; a != nil && n.On != nil && len(n.On) == 0 {
		refuse("on", "on is empty", "Nothing would be sent. Name what it sends, or remove on: then it sends everything.")
	}
	if n.OfCommits() {
		need("secret", n.Secret, "It is a token that may set statuses of commits.")
	}
	check := func(name, value, problem string) {
		if value != "" && problem != "" {
			refuse(name, name+" is not valid", "It "+problem+".")
		}
	}
	server, name := n.To, "to"
	switch n.Type {
	case model.NotifySMTP:
		need("server", n.Server, "It is the mail server, such as smtp://mail.example.org:587.")
		need("from", n.From, "It is the address of the sender.")
		check("to", n.To, addresses(n.To))
		check("from", n.From, addresses(n.From))
		check("server", n.Server, mailServer(n.Server))
		return
	case model.NotifyMatrix:
		need("secret", n.Secret, "It is the access token of the user that sends.")
		need("server", n.Server, "It is the URL of the homeserver, such as https://matrix.example.org.")
		if !strings.HasPrefix(n.To, "!") {
			check("to", n.To, "must be the ID of a room, such as !abc:example.org")
		}
		server, name = n.Server, "server"
	case model.NotifySlack:
		if !slices.Contains(sensitive, "to") {
			refuse("to", "to is a secret", "Anyone who knows this address can send: put it into the secrets file, and write secret.passwords.NAME here.")
		}
	case model.NotifyNtfy:
		if u, err := url.Parse(n.To); err == nil && strings.Trim(u.Path, "/") == "" {
			check("to", n.To, "must end with the topic, such as https://ntfy.sh/TOPIC")
		}
	case model.NotifyGitHub, model.NotifyGitLab, model.NotifyGitea, model.NotifyBitbucket:
		if u, err := url.Parse(n.To); err == nil && !strings.Contains(strings.Trim(u.Path, "/"), "/") {
			check("to", n.To, "must be the URL of a repository, such as https://github.com/OWNER/NAME")
		}
	case model.NotifyWebhook, model.NotifyAlertmanager: // any URL
	}
	u, err := url.Parse(server)
	secret := b.Body.Attributes["secret"] != nil && n.Type != model.NotifyWebhook || name == "to" && slices.Contains(sensitive, "to")
	switch {
	case server == "": // it is not known here, or reported
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil:
		check(name, server, "must be a URL that begins with https:// or http://, without a user")
	case u.Scheme == "http" && secret && !model.OnThisMachine(u.Hostname()):
		check(name, server, "must begin with https://, since the secret would cross the network in clear text")
	}
}

func addresses(text string) string {
	if _, err := mail.ParseAddressList(text); err != nil || strings.ContainsAny(text, "\r\n") {
		return "must be mail addresses, separated by commas"
	}
	return ""
}

func mailServer(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "smtp" && u.Scheme != "smtps" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.User != nil {
		return "must be smtp://HOST:PORT or smtps://HOST:PORT"
	}
	return ""
}

// checkNotify makes the names of hosts those of instances, and checks that they have agents.
func checkNotify(rs *rules) {
	for name, n := range rs.site.Notify {
		var hosts []string
		for _, of := range n.Hosts {
			found := rs.site.Hosts[of] != nil
			if found {
				hosts = append(hosts, of)
			}
			for _, m := range rs.deployed() {
				for _, node := range m.Nodes {
					if node.Type == model.PVEType && (node.Name == of || node.Block == of) {
						hosts, found = append(hosts, node.Name), true
					}
				}
			}
			if !found && rs.Complete {
				rs.Errorf(attributeAt(rs.Named["notify"][name], "hosts"), "notify "+lang.Quote(name)+" names "+lang.Quote(of)+", which is not a host", "Its hosts are those of host blocks, and nodes of type pve of manifests with a host.")
			}
		}
		slices.Sort(hosts)
		n.Hosts = slices.Compact(hosts)
	}
}
