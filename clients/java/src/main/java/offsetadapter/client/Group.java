package offsetadapter.client;

import java.util.Objects;

/** A consumer group in a namespace. */
public final class Group {
    private final String namespace;
    private final String name;

    private Group(final String namespace, final String name) {
        this.namespace = Names.check(namespace, "namespace");
        this.name = Names.check(name, "group");
    }

    /**
     * A group in the namespace {@code default}.
     *
     * @throws InvalidException if the name is none
     */
    public static Group of(final String name) {
        return new Group("default", name);
    }

    /** The group of the same name in another namespace. */
    public Group inNamespace(final String other) {
        return new Group(other, name);
    }

    public String namespace() {
        return namespace;
    }

    public String name() {
        return name;
    }

    @Override
    public boolean equals(final Object other) {
        return other instanceof Group && ((Group) other).name.equals(name) && ((Group) other).namespace.equals(namespace);
    }

    @Override
    public int hashCode() {
        return Objects.hash(namespace, name);
    }

    @Override
    public String toString() {
        return namespace + "/" + name;
    }
}
