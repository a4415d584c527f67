package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/homestak/homestak-gitops/drivers/proxmox/api"
	"github.com/homestak/homestak-gitops/drivers/proxmox/kind"
	"github.com/homestak/homestak-gitops/drivers/proxmox/owner"
	"github.com/homestak/homestak-gitops/engine/model"
	"github.com/homestak/homestak-gitops/engine/plan"
)

// RestoreKind is the kind restore: a backup is restored into a VMID of its own, boots without network cards, and is destroyed.
// The host never has one at rest; what an interrupted one left is listed with the guests.
var RestoreKind = kind.Of[model.RestoreTest]{
	Model: model.Kind{
		Name: model.RestoreKind, Doc: "The verification of a backup: it is restored into another VMID, and boots there without network cards.",
		New:   func() any { return &model.RestoreTest{} },
		Brief: func(r *model.Resource) string { return "of " + r.Spec.(*model.RestoreTest).Archive },
	},
	Create: verifyStep,
	Update: func(ctx context.Context, h *kind.Host, s plan.Step, want, have *model.RestoreTest) error {
		if err := removeScratch(ctx, h, s.Address.Name, have.At); err != nil {
			return err
		}
		return verifyStep(ctx, h, s, want)
	},
	Remove: func(ctx context.Context, h *kind.Host, s plan.Step) error {
		if s.Have == nil {
			return nil // it is gone when the step that made it fails
		}
		return removeScratch(ctx, h, s.Address.Name, s.Have.Spec.(*model.RestoreTest).At)
	},
}

func verifyStep(ctx context.Context, h *kind.Host, s plan.Step, want *model.RestoreTest) error {
	at := api.GuestRef{Node: s.Want.Guest.Node, VMID: s.VMID, LXC: want.Of.Kind == "ct"}
	return verifyArchive(ctx, h, at, s.Address.Name, want.Archive, want.Disk)
}

const (
	// bootPatience is the time until the guest agent of a restored VM answers.
	bootPatience = 10 * time.Minute
	// staysUp is the time that a restored container has to run: PVE cannot ask it more.
	staysUp = 30 * time.Second
	// cleanPatience is the time for removing what a failed verification made.
	cleanPatience = 10 * time.Minute
	bootPoll      = 5 * time.Second
)

// verifyArchive restores an archive into a free VMID, boots the guest without network cards, and destroys it again. name is that of
// the verification, and disk the storage of a container's disks. Production is only read: the restored guest has its own
// VMID, disks, UUID and MAC addresses, no device of the host, and its ownership tag is that of a verification. The
// error says which part failed; nothing is left then, unless ctx has ended or it says so.
func verifyArchive(ctx context.Context, h *kind.Host, at api.GuestRef, name, archive, disk string) error {
	v := verification{target{h, at}, name, archive, disk}
	switch taken, err := h.API.IsTaken(ctx, at.VMID); {
	case err != nil:
		return fmt.Errorf("verifying %s: asking whether VMID %d is free: %w", archive, at.VMID, err)
	case taken: // by an earlier attempt of this step, or by another guest since the plan
		if err := removeScratch(ctx, h, name, model.Guest{Node: at.Node, VMID: at.VMID}); err != nil {
			return err
		}
		if taken, err = h.API.IsTaken(ctx, at.VMID); err != nil || taken {
			return fmt.Errorf("verifying %s: VMID %d is taken by another guest by now: %w", archive, at.VMID, cmp.Or(err, errUnverified))
		}
	}
	err := v.boot(ctx)
	if ctx.Err() != nil {
		return err // the next pass removes what is left
	}
	cleaning, cancel := context.WithTimeout(ctx, cleanPatience)
	defer cancel()
	if cleanErr := removeScratch(cleaning, h, name, model.Guest{Node: at.Node, VMID: at.VMID}); cleanErr != nil {
		return errors.Join(err, cleanErr)
	}
	if err == nil {
		model.RecordTask(ctx, archive)
	}
	return err
}

// verification is a backup that is being verified; target is the guest that it becomes.
type verification struct {
	target
	name, archive, disk string
}

// boot restores the archive, starts the guest and waits until it is up.
func (v verification) boot(ctx context.Context) error {
	failed := func(what string, err error) error {
		return fmt.Errorf("verifying %s: %s %s: %w", v.archive, what, v.at, err)
	}
	if err := v.restore(ctx); err != nil {
		return failed("restoring it as", err)
	}
	cfg, err := v.isolate(ctx)
	if err != nil {
		return failed("isolating", err)
	}
	if !v.at.LXC && !strings.HasPrefix(cfg.Now["agent"], "1") && !strings.Contains(cfg.Now["agent"], "enabled=1") {
		return failed("booting", errors.New("its configuration has no guest agent, so nothing shows that it boots: set agent = true and let it be backed up again"))
	}
	if err := v.power().Start(ctx); err != nil {
		return failed("booting", err)
	}
	if err := v.awaitBoot(ctx); err != nil {
		return failed("booting", err)
	}
	return nil
}

// restore orders the restore and waits for it. A VM exists before with the ownership tag, and is overwritten: so the tag is there
// whatever becomes of the restore. PVE removes a container whose restore fails (PVE/API2/LXC.pm, create_vm).
func (v verification) restore(ctx context.Context) error {
	if err := v.belongs(ctx); err != nil {
		return err
	}
	host := v.host
	tag := host.ID.Begin(v.tag())
	label := "restore-test-" + v.name
	label = strings.TrimRight(label[:min(len(label), 63)], "-")
	p := api.Params{"vmid": v.at.VMID, "tags": owner.PVETag, "protection": false, "onboot": false, "unique": true}
	if host.Model.Pool != "" {
		p["pool"] = host.Model.Pool
	}
	if v.at.LXC {
		p["ostemplate"], p["restore"], p["hostname"], p["storage"] = v.archive, true, label, v.disk
		p["description"] = host.ID.Describe("", tag, v.at, api.GuestConfig{})
		return host.API.Do(ctx, api.Path("nodes", v.at.Node, "lxc"), p.OmitEmpty())
	}
	tag.UUID = uuid.NewString()
	description := host.ID.Describe("", tag, v.at, api.GuestConfig{})
	first := api.Params{"vmid": v.at.VMID, "name": label, "tags": owner.PVETag, "description": description, "smbios1": "uuid=" + tag.UUID}
	if host.Model.Pool != "" {
		first["pool"] = host.Model.Pool
	}
	if err := host.API.Do(ctx, api.Path("nodes", v.at.Node, "qemu"), first); err != nil {
		return err
	}
	p["archive"], p["force"], p["name"], p["description"] = v.archive, true, label, description
	delete(p, "pool") // it is in it
	return host.API.Do(ctx, api.Path("nodes", v.at.Node, "qemu"), p)
}

// belongs verifies that an archive is of the guest whose backup is to be verified: its storage also lists those of earlier guests
// that had the VMID, and a container's configuration does not say when it was created.
func (v verification) belongs(ctx context.Context) error {
	var config string
	err := v.host.API.Get(ctx, api.Path("nodes", v.at.Node, "vzdump", "extractconfig")+"?volume="+url.QueryEscape(v.archive), &config)
	if err != nil {
		return fmt.Errorf("reading its configuration: %w", err)
	}
	var description strings.Builder
	for line := range strings.Lines(config) {
		text, ok := strings.CutPrefix(line, "#") // encode_text in PVE/Tools.pm
		if text, err := url.PathUnescape(text); ok && err == nil {
			description.WriteString(text)
		}
	}
	_, tag, found := owner.ParseDescription(description.String())
	of := tag.Addr()
	if now, moved := v.host.ID.Moved[of]; moved {
		of = now
	}
	if !found || tag.Site != v.host.ID.Site || of.RestoreName() != v.name {
		return errors.New("it is of another guest, or from before this one had its name: its configuration has no ownership tag of this node")
	}
	return nil
}

// tag is the ownership tag of the guest that is restored. That of a container is valid for a day only, as Begin has it: nothing else
// tells the container from a later one with its VMID.
func (v verification) tag() owner.Tag {
	return owner.Tag{Site: v.host.ID.Site, Type: owner.ScratchType, Node: v.name, Owner: v.host.Model.Name}
}

// attached are keys of a configuration by which a guest reaches the network, or devices and folders of the host. args are
// arguments of QEMU, which can be all of that.
var attached = []string{"args", "dev", "hookscript", "hostpci", "ivshmem", "net", "parallel", "serial", "usb", "virtiofs"}

// drives are the keys of disks and mount points. One with a path in place of a volume is a disk or a folder of the host.
var drives = []string{"ide", "mp", "rootfs", "sata", "scsi", "virtio"}

// isolate takes the network cards and the devices of the host away before the first start, signs the ownership tag for good, and
// returns the configuration, which has none of them.
func (v verification) isolate(ctx context.Context) (api.GuestConfig, error) {
	cfg, err := v.scratch(ctx)
	if err != nil {
		return cfg, err
	}
	tag := v.tag()
	if tag.UUID = owner.UUID(cfg.Now["smbios1"]); v.at.LXC {
		tag = v.host.ID.Begin(tag)
	}
	p := api.Params{"description": v.host.ID.Describe("", tag, v.at, cfg), "digest": cfg.Digest}
	if out := attachments(cfg); len(out) > 0 {
		p["delete"] = strings.Join(out, ",")
	}
	if _, err := v.host.API.Put(ctx, v.at.Path("config"), p); err != nil {
		return cfg, err
	}
	if cfg, err = v.scratch(ctx); err != nil {
		return cfg, err
	}
	if left := attachments(cfg); len(left) > 0 {
		return cfg, fmt.Errorf("%s cannot be taken away, so it is not started", strings.Join(left, ", "))
	}
	return cfg, nil
}

// attachments lists the keys of a configuration, now or pending, that a restored guest must not have.
func attachments(cfg api.GuestConfig) []string {
	var out []string
	for _, side := range []map[string]string{cfg.Now, cfg.Next} {
		for key, value := range side {
			family := strings.TrimRight(key, "0123456789")
			is := slices.Contains(attached, family) && (family != "serial" || value != "socket") ||
				slices.Contains(drives, family) && strings.HasPrefix(value, "/")
			if is && !slices.Contains(out, key) {
				out = append(out, key)
			}
		}
	}
	slices.Sort(out)
	return out
}

// scratch reads the guest, and verifies that it is the one of this verification.
func (v verification) scratch(ctx context.Context) (api.GuestConfig, error) {
	cfg, err := v.host.API.ReadConfig(ctx, v.at)
	if err != nil {
		return cfg, err
	}
	if name, ours := v.host.ID.Scratch(v.host.ID.Check(cfg, v.at)); !ours || name != v.name {
		return cfg, fmt.Errorf("its ownership tag is not that of this verification: %w", errUnverified)
	}
	return cfg, nil
}

// awaitBoot waits until the guest agent of a VM answers, or a container has run for a while.
func (v verification) awaitBoot(ctx context.Context) error {
	deadline := time.Now().Add(bootPatience)
	for {
		now, err := v.power().State(ctx)
		switch {
		case err != nil && api.EndsPass(ctx, err):
			return err
		case err == nil && !now.Running:
			return errors.New("it stopped again")
		case err == nil && v.at.LXC && time.Duration(now.Uptime)*time.Second >= staysUp:
			return nil
		case err == nil && !v.at.LXC:
			if _, err = v.host.API.Post(ctx, v.at.Path("agent", "ping"), nil); err == nil {
				return nil
			}
			if api.ClassOf(err) == api.Denied {
				return err
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("its guest agent has not answered within %s: %w", bootPatience, cmp.Or(err, errUnverified))
		}
		if err := api.Sleep(ctx, bootPoll); err != nil {
			return err
		}
	}
}

// removeScratch stops and destroys the guest of a verification, after verifying once more that it is one. One that is gone counts
// as removed.
func removeScratch(ctx context.Context, h *kind.Host, name string, where model.Guest) error {
	view, err := h.API.ReadView(ctx, h.Model)
	if err != nil {
		return err
	}
	g, there := view.Guests[where.VMID]
	if !there {
		return nil
	}
	v := verification{target: target{h, g.Ref()}, name: name}
	if _, others, err := v.power().AwaitOwnTasks(ctx); err != nil || len(others) > 0 {
		return fmt.Errorf("removing %s, which a verification of a backup left: %w", v.at, cmp.Or(err, errors.New("another task works on it")))
	}
	cfg, err := v.scratch(ctx)
	switch {
	case api.ClassOf(err) == api.NotFound:
		return nil
	case err != nil:
		return fmt.Errorf("removing %s, which a verification of a backup left: %w", v.at, err)
	case cfg.Now["lock"] != "":
		return fmt.Errorf("removing %s, which a verification of a backup left: %s", v.at, LockText(v.at, cfg.Now["lock"], nil))
	}
	now, err := v.power().State(ctx)
	if err == nil && now.Running {
		_, err = v.power().whenUnlocked(ctx, func() (string, error) { return h.API.Post(ctx, v.at.Path("status", "stop"), nil) })
	}
	if err == nil {
		var upid string
		upid, err = h.API.Delete(ctx, v.at.Path(), url.Values{"purge": {"1"}, "destroy-unreferenced-disks": {"0"}})
		err = h.API.AwaitWrite(ctx, upid, err)
	}
	if err != nil {
		return fmt.Errorf("removing %s, which a verification of a backup left: %w", v.at, err)
	}
	return nil
}
